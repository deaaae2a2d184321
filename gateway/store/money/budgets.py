"""Budgets in an account's wallet: what each counts now, and what it must count by the account's ledger and holds.

1. **A budget is one field of the wallet**: the end of the window that it counts, and the sum of what was charged and is held in
   it. So it takes no more memory the longer it is used, and nothing has to run at the end of a window.
2. **A request counts in the windows of its hold**, whose marks say which these are, until it is resolved and after it, also
   where that is late. A window that is over is corrected no more, nor is a session that was forgotten.
3. **An orphan, whose hold the store has lost, counts by the marks that its gateway has**: the sums were lost with the hold. One
   whose gateway has no marks, since the reply to its hold was lost as well, counts in no budget.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from gateway.base import ids
from gateway.base.amounts import amount
from gateway.domain.budgets import NEVER, Budget, BudgetUse
from gateway.store.client.client import Argument, Client
from gateway.store.money.scripts import keys_of

Window = tuple[bytes, int]
"""A field of the wallet, and the end of a window."""

DAY_MS: Final = 24 * 3600 * 1000
FORGOTTEN_MS: Final = 3600 * 1000
"""After its last request a session is forgotten, as `wallet.lua` does."""
SESSION_MS: Final = 30 * DAY_MS
LONGEST_MS: Final = {
    **{b"D": 2 * DAY_MS, b"W": 8 * DAY_MS, b"M": 32 * DAY_MS, b"T": NEVER, b"R": 2 * DAY_MS},
    **{b"S": SESSION_MS, b"Q": SESSION_MS},
}
"""No window is longer, by the first letter of the field."""

PAGE: Final = 1000
_MARK: Final = re.compile(rb"([A-Z][a-z0-9]*)E([0-9]+)")


def arguments_of(budgets: Sequence[Budget]) -> tuple[Argument, ...]:
    """Return the arguments of the script `hold`: all fields, all limits, the windows of each."""
    return (*limits_of(budgets), *[budget.ends for budget in budgets])


def limits_of(budgets: Sequence[Budget]) -> tuple[Argument, ...]:
    """Return the arguments of the script `extend`: all fields, all limits."""
    return (*[budget.field for budget in budgets], *[budget.limit for budget in budgets])


async def read_budgets(client: Client, account: str, budgets: Sequence[Budget]) -> list[BudgetUse]:
    """Return the present count of each budget, by the clock that ids follow. Raises `StoreAway`."""
    if not budgets:
        return []
    keys, now_ms = keys_of(account), ids.now_ms()
    stored = await client.call("HMGET", keys.wallet, *(budget.field for budget in budgets))
    for index, budget in enumerate(budgets):
        if budget.of_session:
            last_ms = await client.call("ZSCORE", keys.sessions, budget.field[1:])
            if last_ms is None or last_ms + FORGOTTEN_MS <= now_ms:
                stored[index] = None
    return [_use(budget, text, now_ms) for budget, text in zip(budgets, stored, strict=True)]


def _use(budget: Budget, stored: bytes | None, now_ms: int) -> BudgetUse:
    ends = [int(end) for end in budget.ends.split()]
    ends_ms, used = map(int, (stored or b"0 0").split())
    if budget.of_session:
        return BudgetUse(budget, used, None)
    if not now_ms < ends_ms <= next((end for end in ends if end > now_ms + DAY_MS), ends[-1]):
        ends_ms, used = next((end for end in ends if end > now_ms), ends[-1]), 0
    return BudgetUse(budget, used, None if ends_ms == NEVER else ends_ms)


async def budget_fields(client: Client, account: str) -> list[str]:
    """Return the fields of the wallet that are budgets. Reads all of its fields. Raises `StoreAway`."""
    wallet, found, cursor = keys_of(account).wallet, set[str](), None
    while cursor != 0:
        cursor, page = await client.call("HSCAN", wallet, cursor or 0, "MATCH", "[DWMTRSQ]*", "COUNT", PAGE)
        found.update(field.decode() for field in page)
    return sorted(found)


def windows(fields: Sequence[str], stored: Sequence[bytes | None]) -> dict[Window, int]:
    """Return the windows that these fields of the wallet count now, with their sums."""
    numbers = {field.encode(): text.split() for field, text in zip(fields, stored, strict=True) if text}
    return {(field, int(ends_ms)): int(used) for field, (ends_ms, used) in numbers.items()}


def count(sums: Counter[Window], text: bytes, amount: int) -> None:
    """Add an amount to each window of money whose mark is in `text`, and 1 to each of requests."""
    for field, ends_ms in _MARK.findall(text):
        sums[field, int(ends_ms)] += 1 if field.startswith((b"R", b"Q")) else amount


def differences(
    stored: Mapping[Window, int], sums: Counter[Window], unread_ms: int, now_ms: int, tokens: Collection[bytes]
) -> list[str]:
    """Return a sentence for each budget whose sum in the wallet differs from the sum of the ledger and the holds.

    `unread_ms`: the time of the last line of the ledger that is not in `sums`, 0 where all are. A window that may have such
    lines is left out. One that has not ended and is not in the wallet counts nothing; those of other tokens than `tokens` went
    with their token.
    """
    known = {field for field, _ in stored}
    gone = {
        (field, ends_ms): 0
        for field, ends_ms in sums
        if ends_ms > now_ms and field not in known and (len(field) == 1 or field[1:] in tokens)
    }
    return [
        f"the budget {field.decode()} counts {_shown(field, used)}, "
        f"the ledger and the holds come to {_shown(field, sums[field, ends_ms])}"
        for (field, ends_ms), used in (gone | dict(stored)).items()
        if used != sums[field, ends_ms] and (not unread_ms or ends_ms - LONGEST_MS[field[:1]] > unread_ms)
    ]


def _shown(field: bytes, used: int) -> str:
    return str(used) if field.startswith((b"R", b"Q")) else amount(used)
