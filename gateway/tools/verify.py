"""The comparison of the ledger with the usage log, request by request.

1. **The log is read first, then the journal, then the ledger.** A charge is in the ledger, or in the journal on its way
   there, before its record is closed; so a charge that was read in the log must be found in one of them, also while the
   gateway runs.
2. **What cannot be compared is counted as unknown, never reported as wrong**: a request whose record is open, still with
   another gateway, deleted with its month or not yet in the files, or whose line may be in an archive that was not read.
"""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from gateway.base.amounts import amount
from gateway.base.ids import arrival_ms, month
from gateway.chain.services import Store
from gateway.domain.exchange import Outcome
from gateway.store.money.audit import AccountAudit, Resolved
from gateway.usage import queries
from gateway.usage.database import UnusableFile
from gateway.usage.gateways import Others
from gateway.usage.home import Home
from gateway.usage.record import charge_of
from gateway.usage.stream import DROPPED
from gateway.usage.sums import Selected, grouped

SETTLED_MS: Final = 10_000
"""A younger line of the ledger may be there before its record."""


class Logged(msgspec.Struct, frozen=True):
    """The usage log of one account: the charge of each closed request, and the records that contradict themselves."""

    charges: dict[str, int]
    wrong: dict[str, str]


class Compared(msgspec.Struct):
    """The result of a comparison: what is wrong, and how many requests agree or could not be compared."""

    wrong: list[str] = []
    agreed: int = 0
    unknown: int = 0


class Coverage(msgspec.Struct, frozen=True):
    """Which requests must be in the home of the log: those of `months`, unless `known` says who else may have them.

    `waiting` entries are not there yet; unless it is 0, a request that is missing proves nothing. `dropped`: the month that was
    too old within the last day, or empty.
    """

    home: Home
    months: frozenset[str]
    known: Others
    waiting: int
    dropped: str

    @classmethod
    async def of(cls, store: Store) -> Coverage:
        """Return the present coverage. Raises `StoreAway`."""
        usage = store.usage
        waiting = await usage.length() + usage.spool.count()
        found = await asyncio.to_thread(usage.home.months)
        dropped = bytes(await usage.client.call("GET", DROPPED) or b"").decode()
        return cls(usage.home, frozenset(found), await usage.known(), waiting, dropped)


def damage(store: Store) -> list[str]:
    """Return what cannot be read of the journal and of the usage log, a sentence each. Blocks."""
    unusable: list[UnusableFile] = []
    grouped(store.usage.home, (), Selected(), unusable)
    found = store.journal.damage() + [str(error) for error in unusable]
    for path in sorted((store.usage.folder / "unreadable").glob("*")):
        found.append(f"{path} has records that cannot be read or stored: see which requests they were, then delete it")
    return found


def charged_in_log(home: Home) -> dict[str, tuple[int, int]]:
    """Return how many requests each account has in the usage log, and their charges, of accounts with any. Blocks."""
    sums = grouped(home, ("account",), Selected(), [])
    return {each["account"]: (each["requests"], each["charge_micros"]) for each in sums if each["charge_micros"]}


def logged(home: Home, account: str) -> Logged:
    """Return every closed request of an account from the files. Blocks."""
    charges, wrong = dict[str, int](), dict[str, str]()
    for record in queries.select(home, account=account, unusable=[]):
        if record.outcome not in (None, Outcome.GATEWAY_CRASHED):
            charges[record.id] = record.charge_micros
            if record.price and record.charge_micros != (due := charge_of(record)):
                wrong[record.id] = (
                    f"request {record.id} was charged {amount(record.charge_micros)}, its price and tokens come to {amount(due)}"
                )
    return Logged(charges, wrong)


def compare(logged: Logged, audit: AccountAudit, in_journal: frozenset[str], coverage: Coverage) -> Compared:
    """Compare one account's records with its ledger. `in_journal`: requests whose settlement is in the journal. Blocks.

    A cost that came too late to be charged (`audit.stale`) is for the operator to settle, and is not wrong here.
    """
    result = Compared([text for request_id, text in logged.wrong.items() if request_id not in audit.stale])
    for request_id, charged in logged.charges.items():
        line = audit.requests.get(request_id)
        archived = line is None and audit.unread.may_have(request_id)
        if request_id in in_journal or request_id in audit.stale or archived:
            result.unknown += 1
        elif line is None and charged:
            result.wrong.append(
                f"request {request_id} was charged {amount(charged)} in the usage log and never in the ledger"
            )
        elif line is not None and line.charged != charged:
            result.wrong.append(
                f"request {request_id} was charged {amount(line.charged)} in the ledger and {amount(charged)} in the usage log"
            )
        else:
            result.agreed += 1
    for request_id, line in audit.requests.items():
        if request_id not in logged.charges:
            result.unknown += 1
            if line.charged and _is_lost(request_id, line, audit.at_ms, coverage):
                result.wrong.append(
                    f"request {request_id} was charged {amount(line.charged)} and is not in the usage log"
                )
    return result


def _is_lost(request_id: str, line: Resolved, now_ms: int, coverage: Coverage) -> bool:
    if (
        coverage.waiting
        or line.at_ms > now_ms - SETTLED_MS
        or month(request_id) not in coverage.months
        or any(coverage.known.lacks(arrival_ms(request_id)))
    ):
        return False
    try:
        return queries.find(coverage.home, request_id) is None
    except UnusableFile:  # it is in `damage`
        return False
