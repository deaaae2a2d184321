"""What a caller learns of its own requests: the record of one, and the list of them, newest first."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from gateway.errors import Refused
from gateway.request_id import arrival_ms
from gateway.server.lookups import Lookups
from gateway.server.notes import notes_of, readable
from gateway.server.query import AFTER_REQUEST, DEFAULT, LIMIT, MODEL, OPERATION, OUTCOME, REFERENCE, parameters
from gateway.services import Store
from gateway.usage.damage import UnusableFile
from gateway.usage.pages import Wanted, page
from gateway.usage.record import Record
from gateway.usage.reference import hashed_reference

OWN_FIELDS: Final = (
    *("id", "arrived_at", "operation", "account", "token_id", "group", "model", "requested_model"),
    *("status", "outcome", "error_code", "refused_by", "prompt_tokens", "completion_tokens", "usage_source"),
    *("charge_micros", "price", "first_byte_ms", "duration_ms", "longest_gap_ms", "events", "bytes", "config"),
    *("cached_tokens", "cache_write_tokens"),
)
"""The fields of a record that callers see. The others name upstreams, say what these cost, or are of no use to a caller."""
NOT_FOUND: Final = (
    "No request with this id has ended in this account. Check it against x-request-id, or ask again later."
)
NOT_IN_ALL: Final = (
    "No request with this id has been found in this account, but not every gateway could be asked: it may have arrived. Ask again "
    "later, or ask the operator."
)
PARAMETERS: Final = {
    "limit": LIMIT,
    "after": AFTER_REQUEST,
    "model": MODEL,
    "outcome": OUTCOME,
    "operation": OPERATION,
    "reference": REFERENCE,
}


async def request_of(account: str, id: str, store: Store) -> dict[str, Any]:  # noqa: A002 - the field's name
    """Return the record of one request of an account. Raises `Refused` and `StoreAway`."""
    found = await store.usage.ask(id, account=account)
    if found.record is None:
        raise Refused(404, "request_not_found", NOT_IN_ALL if found.unasked else NOT_FOUND)
    return own_fields(found.record)


async def requests_of(account: str, query: str, store: Store, lookups: Lookups) -> bytes:
    """Return a page of the requests of an account, as JSON. Raises `Refused`."""
    given = parameters(query, PARAMETERS)
    limit = given.pop("limit", DEFAULT)
    if "reference" in given:
        given["reference"] = hashed_reference(account, given["reference"])
    wanted = Wanted(account, **given)
    return await lookups.in_thread(account, partial(_list, store.usage.folder, wanted, limit))


def _list(folder: Path, wanted: Wanted, limit: int) -> bytes:
    unusable: list[UnusableFile] = []
    with readable():
        found = page(folder, wanted, limit, unusable)
    since_ms = arrival_ms(found.next) if found.next else None
    return listed(list(map(own_fields, found.records)), found.next, notes_of(folder, unusable, since_ms))


def listed(lines: Sequence[object], next_: str, notes: Sequence[str], **more: object) -> bytes:
    """Return a page of a list, as JSON."""
    return msgspec.json.encode(
        {
            "object": "list",
            "data": lines,
            "has_more": bool(next_),
            "next": next_ or None,
            **more,
            "notes": notes,
        }
    )


def own_fields(record: Record) -> dict[str, Any]:
    """Return what a caller sees of a record."""
    fields = msgspec.to_builtins(record)
    return {name: fields[name] for name in OWN_FIELDS}
