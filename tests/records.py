"""Usage records as requests leave them, for tests."""

from __future__ import annotations

from typing import Any

import msgspec
from uuid_utils import uuid7

from gateway.exchange import Outcome
from gateway.request_id import arrival_ms, utc
from gateway.usage.record import AttemptRecord, Record


def arrival(id: str = "") -> Record:  # noqa: A002
    """A request that has just arrived, or that arrived when `id` says."""
    id = id or str(uuid7())  # noqa: A001
    return Record(id=id, arrived_at=utc(arrival_ms(id)), operation="chat.completions", config=1)


def end(of: Record, **changes: Any) -> Record:
    """The end of that request: served and charged, unless `changes` say otherwise."""
    served = {
        "account": "demo",
        "token_id": "demo-k3f9x2ab",
        "group": "default",
        "model": "gpt-4o-mini",
        "channel": "openai",
        "attempts": [AttemptRecord("openai", 200)],
        "status": 200,
        "outcome": Outcome.COMPLETED,
        "prompt_tokens": 11,
        "completion_tokens": 41,
        "usage_source": "upstream",
        "charge_micros": 123,
        "price": {"input": 150_000, "output": 600_000, "ratio": "1"},
        "first_byte_ms": 312,
        "duration_ms": 2300,
        "longest_gap_ms": 90,
        "events": 43,
        "bytes": 9000,
    }
    return msgspec.structs.replace(of, **{**served, **changes})


def id_at(ms: int) -> str:
    """The id of a request that arrived then (milliseconds since 1970)."""
    digits = f"{ms:012x}"
    return f"{digits[:8]}-{digits[8:]}{str(uuid7())[13:]}"
