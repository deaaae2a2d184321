"""Writes the usage log: a record for every request, opened when it arrives and closed when it ends, whatever happened.

Put it first in the chain: requests that a plugin above it refuses leave no record.
"""

from __future__ import annotations

import asyncio
from typing import ClassVar, Final

import msgspec

from gateway import AttemptRecord, Exchange, Outcome, Plugin, Record, Services, arrival_ms, utc

MAX_FOREIGN_NAME: Final = 128
"""Characters that are kept of names which come from an upstream."""


class Arrival(msgspec.Struct, frozen=True):
    """The open record of an exchange. `written` is done when the store has it."""

    record: Record
    written: asyncio.Future[object]


class UsageLogger(Plugin):
    """Records that a request arrived, and how it ended. Refuses a request whose arrival cannot be recorded."""

    sees_misdirected: ClassVar[bool] = True

    async def start(self, services: Services) -> None:
        """Take the log, and the catalogue: only the names of models that exist are recorded."""
        self.usage = services.store.usage
        self.models = services.catalogue.models

    async def on_request(self, exchange: Exchange) -> None:
        """Open the record. The chain goes on meanwhile, but the upstream is not called before the store has the record."""
        opened = _opened(exchange)
        written = self.usage.submit_arrival(opened)
        exchange[Arrival] = Arrival(opened, written)
        exchange.before_upstream(written)

    async def explain(self, exchange: Exchange) -> str:
        """Return what would be recorded. This plugin refuses no request."""
        return "a record is opened now, and closed at the end"

    async def on_end(self, exchange: Exchange) -> None:
        """Close the record with all that is known about the exchange."""
        arrival = exchange[Arrival]
        if not arrival.written.done():
            await asyncio.wait([arrival.written])
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
        upstream_request_id=last.upstream_request_id[:MAX_FOREIGN_NAME] if last else "",
        attempts=[AttemptRecord(attempt.channel, attempt.status, attempt.error) for attempt in exchange.attempts],
        status=exchange.status,
        outcome=exchange.outcome or Outcome.INTERNAL_ERROR,
        error_code=exchange.error.code[:MAX_FOREIGN_NAME] if exchange.error else "",
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
