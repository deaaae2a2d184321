"""Usage records for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec
from uuid_utils import uuid7

from gateway.base.ids import arrival_ms, utc
from gateway.domain.exchange import Outcome
from gateway.operations.operation import Operation
from gateway.usage.database import UsageFiles
from gateway.usage.home import Home
from gateway.usage.record import AttemptRecord, Record
from gateway.usage.sink import Sink

COSTED: Final[dict[str, Any]] = {
    "attempts": [AttemptRecord("openai", 200, cost_micros=100)],
    "cached_tokens": 4,
    "cache_write_tokens": 2,
    "cost_micros": 100,
    "margin_micros": 23,
    "cost_price": {"input": 120_000, "output": 500_000, "ratio": "1"},
    "upstream_cost_micros": 99,
    "upstream_usage": '{"prompt_tokens":11,"completion_tokens":41}',
}
"""What is recorded of a prompt that was cached in part, on a channel whose cost is known."""

OPENED: Final[list[Home]] = []
"""What tests have opened: closed at the end of each test."""


def usage_database(folder: Path) -> UsageFiles:
    """Return the usage log of a folder, to be written by a test. It is closed when the test ends."""
    OPENED.append(database := UsageFiles(folder))
    return database


def writer(home: Home) -> Home:
    """Return the writer of a home. It is closed when the test ends."""
    OPENED.append(home)
    return OPENED[-1]


def usage_sink(*arguments: Any, **named: Any) -> Sink:
    """Return a sink that a test runs itself. Its database is closed when the test ends."""
    sink = Sink(*arguments, **named)
    OPENED.append(sink.home)
    return sink


def arrival(id: str = "", gateway: str = "") -> Record:  # noqa: A002
    """Return the arrival of a request, now or at the time of `id`, at a gateway."""
    id = id or str(uuid7())  # noqa: A001
    return Record(id=id, arrived_at=utc(arrival_ms(id)), operation=Operation.CHAT, config=1, gateway=gateway)


def end(arrival: Record, **changes: Any) -> Record:
    """Return the end of a request that was served and charged, with `changes`."""
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
    return msgspec.structs.replace(arrival, **{**served, **changes})


def close_open(database: Home, before_ms: int) -> int:
    """Close the open requests that arrived before, as the sink does; return how many."""
    lost = database.open_requests(before_ms, (), 100_000)
    database.write([msgspec.structs.replace(record, outcome=Outcome.GATEWAY_CRASHED) for record in lost])
    return len(lost)


def id_at(ms: int) -> str:
    """Return the id of a request that arrived at `ms` (milliseconds since 1970)."""
    digits = f"{ms:012x}"
    return f"{digits[:8]}-{digits[8:]}{str(uuid7())[13:]}"
