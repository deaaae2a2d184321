"""What a caller sees of its own account at its pages: the same sums and records as at the public port."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from gateway.errors import Refused
from gateway.management.desk import LocalDesk
from gateway.server.notes import notes_of, readable
from gateway.server.requests import NOT_FOUND, NOT_IN_ALL, own_fields
from gateway.usage import pages
from gateway.usage.damage import UnusableFile
from gateway.usage.gaps import span_ms
from gateway.usage.pages import OWN_SUMS, Wanted, own_sums

Line = Mapping[str, Any]


class OwnUsage(msgspec.Struct, frozen=True):
    """The sums of an account over some days: each day of them, also those without requests, each model, each token, and all."""

    days: Sequence[Line]
    models: Sequence[Line]
    tokens: Sequence[Line]
    total: Mapping[str, int]
    notes: Sequence[str]


class OwnRequests(msgspec.Struct, frozen=True):
    """A part of the list of an account's requests, newest first. `next`: what the next part comes after, or empty."""

    data: Sequence[Line]
    next: str
    notes: Sequence[str]


async def usage(desk: LocalDesk, account: str, days: int) -> OwnUsage:
    """Return the sums of the last `days` days (UTC), which end today. Raises `FilesUnusable`."""
    last = datetime.now(UTC).date()
    wanted = [f"{last - timedelta(days=back)}" for back in range(days)][::-1]

    def read() -> OwnUsage:
        unusable: list[UnusableFile] = []
        folder = desk.usage_folder
        with readable():
            by_day, by_model, by_token = (
                own_sums(folder, account, [group], wanted[0], wanted[-1], unusable)
                for group in ("day", "model", "token_id")
            )
        found = {line["day"]: line for line in by_day}
        nothing = dict.fromkeys(OWN_SUMS, 0)
        return OwnUsage(
            [found.get(day, {"day": day, **nothing}) for day in wanted],
            _largest_first(by_model),
            _largest_first(by_token),
            {name: sum(line[name] for line in by_day) for name in OWN_SUMS},
            notes_of(folder, unusable, *span_ms(wanted[0], wanted[-1])),
        )

    return await asyncio.to_thread(read)


async def requests(desk: LocalDesk, account: str, after: str, limit: int) -> OwnRequests:
    """Return a part of the list of an account's requests. `after` is an id. Raises `FilesUnusable`."""

    def read() -> OwnRequests:
        unusable: list[UnusableFile] = []
        with readable():
            found = pages.page(desk.usage_folder, Wanted(account, after=after), limit, unusable)
        return OwnRequests(list(map(own_fields, found.records)), found.next, notes_of(desk.usage_folder, unusable))

    return await asyncio.to_thread(read)


async def request(desk: LocalDesk, account: str, request_id: str) -> Line:
    """Return one request of an account. Raises `Refused` (404) where it has none with this id."""
    found = await desk.store.usage.ask(request_id, account=account)
    if found.record is None:
        raise Refused(404, "request_not_found", NOT_IN_ALL if found.unasked else NOT_FOUND)
    return own_fields(found.record)


def _largest_first(lines: Sequence[Line]) -> list[Line]:
    return sorted(lines, key=lambda line: (-line["charge_micros"], -line["requests"]))
