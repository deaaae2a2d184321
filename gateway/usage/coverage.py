"""Which gateways of the store may know of a request that this one does not find."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from gateway.request_id import arrival_ms
from gateway.store.client.client import Client
from gateway.usage import gaps
from gateway.usage.away import SETTLED_MS, held
from gateway.usage.gaps import LONGEST_MS, Gap, Reading, is_before, ms_of
from gateway.usage.gateways import Gateway, away_of, gateways_of, unknown_to_store
from gateway.usage.installation import short
from gateway.usage.keys import EARLIER, TRIMMED
from gateway.usage.reader import FIRST, position_of
from gateway.usage.record import Record
from gateway.usage.spool import Spool

FORGET: Final = "`gateway gateways forget"


class Known(msgspec.Struct, frozen=True):
    """What the gateways of the store have handed over, at one moment: `gaps` of this one, and the others.

    `unread`: why this gateway's own records are not all in its files.
    """

    gaps: list[Gap]
    earlier: list[str]
    others: list[Gateway]
    unread: list[str]

    def unasked(self, id: str, *, ended: bool) -> list[str]:  # noqa: A002 - the field's name
        """Return a sentence for each reason why more may be known elsewhere of a request that is not found here.

        `ended`: also where only its end may be elsewhere.
        """
        try:
            arrived = arrival_ms(id)
        except ValueError:
            return []
        return self.lacks(arrived) or (list(self._ends(arrived)) if ended else [])

    def lacks(self, arrived_ms: int) -> list[str]:
        """Return a sentence for each reason why a request that arrived then may be missing here."""
        return [*self._own(arrived_ms), *self._of_others(arrived_ms)]

    def may_have_end(self, record: Record) -> list[str]:
        """Return a sentence for each reason why a request that is open here may have ended."""
        return list(self._ends(arrival_ms(record.id), record.gateway))

    def _ends(self, at: int, gateway: str | None = None) -> Iterator[str]:
        """Yield a sentence for each reason why a request that arrived then may have ended, at `gateway` if that is known."""
        for gap in self.gaps:
            if gap.touches(at, at):
                yield f"it may have ended {gap}, and this gateway does not have the log of that time"
        for each in self.others:
            received = "" if gateway is None else ", which received it,"
            if gateway not in (None, short(each.installation)) or (each.present and not each.about.files):
                continue
            if each.about.forgotten_ms:
                if gateway is not None:
                    yield from (away.note() for away in away_of([each]))
            elif gateway is not None or (not each.about.stopped and each.heard_ms - LONGEST_MS <= at):
                yield (
                    f"gateway {each.name}{received} was last heard of at {each.heard}{held(each.about.files)}: ask there; "
                    f"if it has gone for good, {FORGET} {short(each.installation)}`"
                )

    def _own(self, arrived_ms: int) -> Iterator[str]:
        yield from self.unread
        for gap in self.gaps:
            if gap.may_have(arrived_ms):
                having = [each.name for each in self.others if each.present and not _lacks(each, arrived_ms)]
                there = f"ask there: {', '.join(having)}" if having else "no other gateway has it either"
                yield f"this gateway does not have the log of what arrived {gap}: {there}"
        if self.earlier:
            names = ", ".join(self.earlier)
            yield f"gateways of an earlier version have usage logs of their own: ask there, or upgrade them ({names})"

    def _of_others(self, arrived_ms: int) -> Iterator[str]:
        for each in self.others:
            if each.about.forgotten_ms:
                if each.heard_ms - SETTLED_MS <= arrived_ms <= each.about.forgotten_ms:
                    yield from (away.note() for away in away_of([each]))
            elif each.about.stopped:  # it has handed over all, and receives nothing
                continue
            elif each.heard_ms < arrived_ms + SETTLED_MS and each.present and not each.about.files:
                yield f"gateway {each.name} has not said yet whether it has it: ask again in {SETTLED_MS // 1000} seconds"
            elif each.heard_ms < arrived_ms + SETTLED_MS or each.about.files:
                yield (
                    f"gateway {each.name} was last heard of at {each.heard}{held(each.about.files)}: ask there; "
                    f"if it has gone for good, {FORGET} {short(each.installation)}`"
                )

    def notes(self) -> Iterator[str]:
        """Yield a sentence for each reason why some requests are missing here."""
        yield from self.unread
        for gap in self.gaps:
            yield f"requests that arrived or ended {gap} may be missing here: this gateway does not have the log of that time"
        if self.earlier:
            yield f"gateways of an earlier version have usage logs of their own: {', '.join(self.earlier)}"
        yield from (away.note() for away in away_of(self.others))


class Coverage:
    """Asks the store what each gateway has handed over."""

    def __init__(self, client: Client, folder: Path, installation: str) -> None:
        self._client = client
        self._folder = folder
        self._installation = installation

    async def known(self) -> Known:
        """Return what the gateways of the store have handed over by now. Raises `StoreAway`."""
        reading, spooled = await asyncio.to_thread(self._on_disk)
        gateways, trimmed, position, moving = await asyncio.gather(
            gateways_of(self._client),
            self._client.call("GET", TRIMMED),
            position_of(self._client, self._installation),
            self._client.call("XLEN", f"{EARLIER}{self._installation}"),
        )
        unread = []
        if spooled:
            unread.append(f"{spooled} files of records wait in the spool of this gateway: they are read while it runs")
        if moving:
            unread.append(
                f"{moving} entries of the version before are not in the files yet: they are read while it runs"
            )
        others = [gateway for gateway in gateways if gateway.installation != self._installation]
        others += unknown_to_store(gateways, reading.away)
        return Known(_gaps(reading, position, trimmed), reading.earlier, others, unread)

    def _on_disk(self) -> tuple[Reading, int]:
        return gaps.load(self._folder), len(Spool(self._folder / "spool").files())


def _gaps(reading: Reading, position: str | None, trimmed: bytes | None) -> list[Gap]:
    """Return the gaps of a gateway, with the one that it will have when it reads on."""
    if trimmed is None:
        return reading.gaps
    removed, read = trimmed.decode(), position or reading.position or FIRST
    return gaps.merged([*reading.gaps, Gap(ms_of(read), ms_of(removed))]) if is_before(read, removed) else reading.gaps


def _lacks(gateway: Gateway, arrived_ms: int) -> bool:
    return any(gap.may_have(arrived_ms) for gap in gateway.about.gaps)
