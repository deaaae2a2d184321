"""Writes the usage log: a record for every request, opened when it arrives and closed when it ends, whatever happened.

Put it first in the chain: requests that a plugin above it refuses leave no record.

Refusals that cost nothing are counted instead, beyond so many a minute from one address or account: each minute one record says
how many, and from when to when. A request that was admitted always has a record of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Sequence
from typing import Any, ClassVar, Final

import msgspec

from gateway import (
    AttemptRecord,
    Body,
    Caller,
    Exchange,
    Operation,
    Outcome,
    Plan,
    PlanPart,
    Plugin,
    PreparedRecord,
    Record,
    Route,
    SentArrival,
    Services,
    Step,
    StoreAway,
    hashed_reference,
    reference_in,
    shown_message,
    shown_name,
)
from plugins.pacing import CountedRefusals

MAX_FOREIGN_NAME: Final = 128
"""Characters that are kept of names which come from an upstream."""


REPORT_EVERY_S: Final = 60.0
"""How often counted refusals are recorded."""
NAMED: Final = 5
"""Callers that the log line about counted refusals names."""


class Arrival(msgspec.Struct):
    """The arrival of an exchange. `written` is done when the store has it; None while it was not sent there."""

    written: SentArrival | None = None
    reference: str = ""
    """What the caller names the request; only its hash is recorded, with the account as its key."""
    line: bytes = b""
    """What a plan has sent last: the arrival or the end. Empty where the arrival was not its line."""


class UsageLogger(Plugin):
    """Records that a request arrived, and how it ended. Refuses a request whose arrival cannot be recorded."""

    API = 1
    sees_misdirected: ClassVar[bool] = True

    unknown_per_minute: int = 60
    """Refused requests without a known account that are recorded in a minute for one address; more are counted."""
    refused_per_minute: int = 600
    """Refused requests that are recorded in a minute for one account; more are counted."""

    def __post_init__(self) -> None:
        if self.unknown_per_minute < 1 or self.refused_per_minute < 1:
            raise ValueError("unknown_per_minute and refused_per_minute must be 1 or more")

    async def start(self, services: Services) -> None:
        """Take the log, and the catalogue: the models that exist."""
        self.usage = services.store.usage
        self.models = services.catalogue.models
        self.aliases = services.catalogue.aliases
        self.log = services.log
        self._counted = CountedRefusals(self.unknown_per_minute, self.refused_per_minute, services.clock)
        services.every(REPORT_EVERY_S, self._report)

    async def stop(self) -> None:
        """Record what was counted since the last report."""
        await self._report()

    async def on_request(self, exchange: Exchange) -> None:
        """Open the record. The chain goes on meanwhile, but the upstream is not called before the store has the record.

        After too many refusals from an address, its records are opened only once the chain has admitted the request. Raises
        `Refused` for a reference that cannot be kept.
        """
        arrival = exchange[Arrival] = Arrival()
        self.open(exchange, arrival, b"")
        arrival.reference = reference_in(exchange.request.headers)

    def open(self, exchange: Exchange, arrival: Arrival, line: bytes) -> None:
        """Write an arrival: its line, or that of `UsageLog.opened` where it is empty."""
        if self._counted.defers(exchange.request.peer):
            exchange.before_upstream(Deferred(self, exchange))
            return
        arrival.line = line
        arrival.written = self.usage.submit_arrival(line or self.usage.opened(exchange))
        exchange.before_upstream(arrival.written)

    def prepare(self, plan: Plan) -> PlanPart:
        """Return the part that writes the records of one caller and one model."""
        record = self.usage.prepared(plan.operation, plan.generation, plan[Caller], plan.model)
        return UsagePart(self, record)

    async def explain(self, exchange: Exchange) -> str:
        """Return what would be recorded. This plugin refuses no request."""
        return "a record is opened now, and closed at the end"

    async def end_step(self, exchange: Exchange) -> Step | None:
        """Close the record with all that is known about the exchange, or count the exchange."""
        arrival = exchange[Arrival]
        if arrival.written is not None and not arrival.written.sent.done():
            await asyncio.wait([arrival.written.sent])
        opened = self.usage.opened(exchange)
        try:
            exceeds = self._counted.exceeds(exchange)
            if arrival.written is None and exceeds:
                self._counted.count(exchange)
                return None
            model = exchange.model if exchange.model in self.models else ""
            record = _closed(opened, exchange, model, *self.usage.caller_of(exchange.request))
            if arrival.reference and record.account:
                reference = hashed_reference(record.account, arrival.reference)
                record = msgspec.structs.replace(record, reference=reference)
            if exchange.notes is not None:
                record = msgspec.structs.replace(record, tags=exchange.notes)
            if not model or exchange.error is not None:
                record = self._explained(record, exchange)
            if exchange.changed_by or exchange.answered_by:
                record = self._by_plugins(record, exchange)
            return await self.usage.end_step(record)
        except Exception:  # a plugin left a wrong value on the exchange
            self.log.exception("record_incomplete", request_id=exchange.id)
            await self._close_with_certain(opened, exchange)
            return None

    def _explained(self, record: Record, exchange: Exchange) -> Record:
        """Add a model that does not exist as the caller named it, what an error said, and why channels could not be called."""
        requested = "" if record.model else shown_name(exchange.model)
        reasons = {} if exchange.error is None else dict(exchange.error.unavailable)
        route = exchange.get(Route)
        if reasons and route is not None and record.model:
            open_to_group = {candidate.name for candidate in route.candidates}
            closed = {serving.use for serving in self.models[record.model].servings} - open_to_group
            reasons |= dict.fromkeys(sorted(closed), "not open to the group")
        if exchange.error is not None:
            param, message = shown_name(exchange.error.param or ""), shown_message(exchange.error.message)
            record = msgspec.structs.replace(record, error_param=param, error_message=message)
        return msgspec.structs.replace(record, requested_model=requested, unavailable=reasons)

    def _by_plugins(self, record: Record, exchange: Exchange) -> Record:
        """Add which plugins changed the request or answered it, and the model that the caller named."""
        asked = exchange.requested_model
        asked = asked if asked in self.models or asked in self.aliases else shown_name(asked)
        return msgspec.structs.replace(
            record,
            requested_model=asked or record.requested_model,
            changed_by=list(exchange.changed_by),
            answered_by=exchange.answered_by,
        )

    async def _close_with_certain(self, opened: Record, exchange: Exchange) -> None:
        """Close the record with those values of the exchange that can be stored."""
        record = msgspec.structs.replace(opened, outcome=Outcome.INTERNAL_ERROR)
        for name, value in _certain(exchange).items():
            changed = msgspec.structs.replace(record, **{name: value})
            if self.usage.can_store(changed):
                record = changed
        await self.usage.end(record)

    async def _report(self) -> None:
        """Record what was counted, and log from whom the most came."""
        tallies = self._counted.take()
        if not tallies:
            return
        most = sorted(tallies, key=lambda key: tallies[key].count, reverse=True)[:NAMED]
        self.log.warning(
            "refusals_counted",
            requests=sum(tally.count for tally in tallies.values()),
            callers=len(tallies),
            most={key: tallies[key].count for key in most},
        )
        for tally in tallies.values():
            try:
                await self.usage.end(msgspec.structs.replace(tally.record(), gateway=self.usage.gateway))
            except (StoreAway, ValueError, TypeError) as error:
                self.log.error("counted_refusals_lost", requests=tally.count, reason=str(error))


class UsagePart(PlanPart):
    """Writes the arrivals and the ends of the requests of one plan."""

    def __init__(self, logger: UsageLogger, record: PreparedRecord) -> None:
        self._logger = logger
        self._usage = logger.usage
        self._record = record
        self.end = logger.usage.appending()

    def fill(self, exchange: Exchange, body: Body) -> tuple[()]:
        exchange.facts[Arrival] = Arrival(None, reference_in(exchange.request.headers))
        return ()

    def begin(self, exchange: Exchange) -> None:
        self._logger.open(exchange, exchange.facts[Arrival], self._record.arrived(exchange))

    def fill_end(self, exchange: Exchange) -> Sequence[bytes] | None:
        arrival: Arrival = exchange.facts[Arrival]
        if not arrival.line or not arrival.written or not arrival.written.sent.done() or arrival.reference:
            return None
        address, user_agent = self._usage.caller_of(exchange.request)
        line = self._record.ended(exchange, arrival.line, address, user_agent)
        if line is None or not self._usage.takes_ends():
            return None
        arrival.line = line
        return self._usage.to_append(line)

    def read_end(self, exchange: Exchange, reply: Any) -> None:
        self._usage.appended(exchange.facts[Arrival].line)


class Deferred:
    """The arrival of a request that is sent to the store only when the chain has admitted the request."""

    def __init__(self, logger: UsageLogger, exchange: Exchange) -> None:
        self._logger = logger
        self._exchange = exchange

    def __await__(self) -> Generator[object, None, object]:
        exchange = self._exchange
        refused = exchange.refused_by or exchange.body_refusal is not None
        if not refused and exchange.request.operation is not Operation.MISDIRECTED:
            usage, arrival = self._logger.usage, exchange[Arrival]
            arrival.written = usage.submit_arrival(usage.opened(exchange))
            yield from arrival.written.__await__()
        return None


def _certain(exchange: Exchange) -> dict[str, object]:
    """Return what closes the record of an exchange that has a wrong value; any of them may be the wrong one."""
    identity = exchange.get(Caller) or exchange
    return {
        **{name: getattr(identity, name, "") for name in ("account", "token_id", "group")},
        **{name: getattr(exchange, name) for name in ("channel", "status", "refused_by", "charge_micros", "price")},
        "outcome": exchange.outcome or Outcome.INTERNAL_ERROR,
    }


def _closed(opened: Record, exchange: Exchange, model: str, address: str, user_agent: str) -> Record:
    """Return the record with its end. It is set in parts: Python makes a dictionary for a call with more than 14 names."""
    last = exchange.attempts[-1] if exchange.attempts else None
    # Without a Caller the request was refused; the exchange says whose it was, as far as that is known.
    identity = exchange.get(Caller) or exchange
    served = msgspec.structs.replace(
        opened,
        account=identity.account,
        token_id=identity.token_id,
        group=identity.group,
        model=model,
        channel=exchange.channel,
        upstream_request_id=last.upstream_request_id[:MAX_FOREIGN_NAME] if last else "",
        attempts=[
            AttemptRecord(
                attempt.channel,
                attempt.status,
                attempt.error,
                attempt.cost_micros,
                attempt.upstream_request_id[:MAX_FOREIGN_NAME],
                attempt.completion_id[:MAX_FOREIGN_NAME],
                attempt.dialect[:MAX_FOREIGN_NAME],
                attempt.said.message,
                attempt.said.code[:MAX_FOREIGN_NAME],
                attempt.said.type[:MAX_FOREIGN_NAME],
            )
            for attempt in exchange.attempts
        ],
        status=exchange.status,
        outcome=exchange.outcome or Outcome.INTERNAL_ERROR,
        error_code=exchange.error.code[:MAX_FOREIGN_NAME] if exchange.error else "",
        refused_by=exchange.refused_by,
        completion_id=last.completion_id[:MAX_FOREIGN_NAME] if last else "",
    )
    usage = exchange.usage
    measured = msgspec.structs.replace(
        served,
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        usage_source=usage.source,
        cached_tokens=usage.cached_tokens,
        cache_write_tokens=usage.cache_write_tokens,
        first_byte_ms=None if exchange.first_byte_ms is None else round(exchange.first_byte_ms),
        duration_ms=round(exchange.duration_ms),
        longest_gap_ms=round(exchange.longest_gap_s * 1000),
        events=exchange.events,
        bytes=exchange.bytes,
    )
    cost = exchange.cost_micros
    return msgspec.structs.replace(
        measured,
        charge_micros=exchange.charge_micros,
        price=exchange.price,
        cost_micros=cost,
        margin_micros=None if cost is None else exchange.charge_micros - cost,
        cost_price=last.cost.record(last.usage) if last and last.cost else {},
        upstream_cost_micros=last.stated_micros if last else None,
        upstream_usage=last.reported if last else "",
        address=address,
        user_agent=user_agent,
    )
