"""The usage log: every request leaves a record when it arrives, and its end closes it, whatever happened.

Put it first in the chain: refusals of plugins above it leave no record.
"""

from __future__ import annotations

import asyncio
from typing import ClassVar, Final

import msgspec

from gateway import AttemptRecord, Exchange, Outcome, Plugin, Record, Services, arrival_ms, utc

LONGEST_FOREIGN_NAME: Final = 128
"""Characters kept of what an upstream made up."""


class Arrival(msgspec.Struct, frozen=True):
    """An arrival on its way into the log."""

    record: Record
    kept: asyncio.Future[object]


class UsageLogger(Plugin):
    """Keeps the proof that a request arrived, and how it ended. A request whose arrival cannot be kept is
    refused.
    """

    sees_misdirected: ClassVar[bool] = True

    async def start(self, services: Services) -> None:
        """Take the log, and the catalogue, which tells the models' names from what callers make up."""
        self.usage = services.store.usage
        self.models = services.catalogue.models

    async def on_request(self, exchange: Exchange) -> None:
        """Send the arrival; the upstream is not called before it is kept."""
        opened = _opened(exchange)
        kept = self.usage.submit_arrival(opened)
        exchange[Arrival] = Arrival(opened, kept)
        exchange.before_upstream(kept)

    async def explain(self, exchange: Exchange) -> str:
        """Nothing is asked of the request."""
        return "a record is opened now, and closed at the end"

    async def on_end(self, exchange: Exchange) -> None:
        """Close the record with all that is known by now."""
        arrival = exchange[Arrival]
        if not arrival.kept.done():
            await asyncio.wait([arrival.kept])
        model = exchange.model if exchange.model in self.models else ""
        await self.usage.end(_closed(arrival.record, exchange, model))


def _opened(exchange: Exchange) -> Record:
    return Record(
        id=exchange.id,
        arrived_at=utc(arrival_ms(exchange.id)),
        operation=exchange.request.operation,
        config=exchange.generation,
    )


def _closed(opened: Record, exchange: Exchange, model: str) -> Record:
    usage = exchange.usage
    last = exchange.attempts[-1] if exchange.attempts else None
    return msgspec.structs.replace(
        opened,
        account=exchange.account,
        token_id=exchange.token_id,
        group=exchange.group,
        model=model,
        channel=exchange.channel,
        upstream_request_id=last.upstream_request_id[:LONGEST_FOREIGN_NAME] if last else "",
        attempts=[AttemptRecord(attempt.channel, attempt.status, attempt.error) for attempt in exchange.attempts],
        status=exchange.status,
        outcome=exchange.outcome or Outcome.INTERNAL_ERROR,
        error_code=exchange.error.code[:LONGEST_FOREIGN_NAME] if exchange.error else "",
        refused_by=exchange.refused_by,
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        usage_source=usage.source,
        charge_micros=exchange.charge_micros,
        price=exchange.price,
        first_byte_ms=None if exchange.first_byte_ms is None else round(exchange.first_byte_ms),
        duration_ms=round(exchange.duration_ms),
        longest_gap_ms=round(exchange.longest_gap_s * 1000),
        events=exchange.events,
        bytes=exchange.bytes,
    )
