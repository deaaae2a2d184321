"""Whether the ledger and the usage log agree, request by request.

1. **The log is read first, then the journal, then the ledger.** A charge is in the ledger, or on its way to it in the
   journal, before its record is closed; so what was read earlier must be found later, while everything runs.
2. **What cannot be known is counted, never called wrong**: a request whose record is open, or of another machine, or
   dropped with its month, or on its way to the files, or whose line may be in an archive that was not read.
"""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any, Final

import msgspec

from gateway.catalogue import Price
from gateway.exchange import Outcome
from gateway.request_id import month
from gateway.services import Store
from gateway.store.money.audit import Audit, Resolved
from gateway.usage import queries
from gateway.usage.database import months
from gateway.usage.record import Record

SETTLED_MS: Final = 10_000
"""A line of the ledger that is younger may be ahead of its record."""


class Logged(msgspec.Struct, frozen=True):
    """What the files say of an account: each request that ended and its charge, and what is wrong by itself."""

    charges: dict[str, int]
    wrong: dict[str, str]


class Compared(msgspec.Struct):
    """What a comparison came to: what is wrong, in words, and how many requests agreed or could not be compared."""

    wrong: list[str] = []
    agreed: int = 0
    unknown: int = 0


class Coverage(msgspec.Struct, frozen=True):
    """Which requests the files of this machine must have: those of `months`, where no other machine writes a log.

    `waiting` entries are on their way to the files; then a request that is missing there proves nothing.
    """

    folder: Path
    months: frozenset[str]
    alone: bool
    waiting: int

    @classmethod
    async def of(cls, store: Store) -> Coverage:
        """As it is now. Raises `StoreAway`."""
        usage = store.usage
        streams = {key async for key in store.client.keys("gw:usage:*")}
        waiting = await usage.length() + len(usage.spool.files())
        return cls(usage.folder, frozenset(months(usage.folder)), streams <= {usage.stream}, waiting)


def logged(folder: Path, account: str) -> Logged:
    """Every closed request of an account in the files. Blocks."""
    charges, wrong = dict[str, int](), dict[str, str]()
    for record in queries.select(folder, account=account):
        if record.outcome not in (None, Outcome.GATEWAY_CRASHED):
            charges[record.id] = record.charge_micros
            if record.price and record.charge_micros != (due := _due(record)):
                wrong[record.id] = (
                    f"request {record.id} was charged {record.charge_micros} micros, its price and tokens come to {due}"
                )
    return Logged(charges, wrong)


def compare(logged: Logged, audit: Audit, on_the_way: frozenset[str], coverage: Coverage) -> Compared:
    """Hold one account's records against its ledger. `on_the_way`: requests in the journal. Blocks.

    A cost that came too late to be charged (`audit.stale`) is an operator's to settle, and is not wrong here.
    """
    result = Compared([text for request_id, text in logged.wrong.items() if request_id not in audit.stale])
    for request_id, charged in logged.charges.items():
        line = audit.requests.get(request_id)
        archived = line is None and audit.unread.may_have(request_id)
        if request_id in on_the_way or request_id in audit.stale or archived:
            result.unknown += 1
        elif line is None and charged:
            result.wrong.append(
                f"request {request_id} was charged {charged} micros in the usage log and never in the ledger"
            )
        elif line is not None and line.charged != charged:
            result.wrong.append(
                f"request {request_id} was charged {line.charged} micros in the ledger and {charged} in the usage log"
            )
        else:
            result.agreed += 1
    for request_id, line in audit.requests.items():
        if request_id not in logged.charges:
            result.unknown += 1
            if line.charged and _is_lost(request_id, line, audit.at_ms, coverage):
                result.wrong.append(
                    f"request {request_id} was charged {line.charged} micros and is not in the usage log"
                )
    return result


def _is_lost(request_id: str, line: Resolved, now_ms: int, coverage: Coverage) -> bool:
    if (
        coverage.waiting
        or not coverage.alone
        or line.at_ms > now_ms - SETTLED_MS
        or month(request_id) not in coverage.months
    ):
        return False
    return queries.find(coverage.folder, request_id) is None


def _due(record: Record) -> int:
    """The charge, computed again from the record's own price and tokens."""
    told: dict[str, Any] = record.price
    price = Price(told["input"], told["output"], Fraction(told["ratio"]))
    cost = price.cost(record.prompt_tokens, record.completion_tokens)
    return min(cost, int(told.get("capped_micros", cost)))
