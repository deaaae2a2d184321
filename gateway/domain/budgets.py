"""Budgets of an account and of a token: the calendar windows that they count, and their fields in the account's wallet.

The windows are those of a time zone: a day begins at midnight, a week on Monday, a month on its first day. The store chooses the
window of a request by its own clock, from the ends that the gateway computed, so nothing has to run at midnight.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime, timedelta, tzinfo
from typing import Final, Literal

import msgspec

from gateway.base.ids import Clock
from gateway.domain.facts import NO_BUDGETS, Budgets, Caller

Kind = Literal["day", "week", "month", "total", "requests"]

FIELDS: Final[dict[Kind, str]] = {"day": "D", "week": "W", "month": "M", "total": "T", "requests": "R"}
"""How the wallet's fields begin: of a budget of money in a window or in total, and of requests a day."""

NEVER: Final = 9_999_999_999_999
"""The end of what has no end. Every end of a window has as many digits."""


class Budget(msgspec.Struct, frozen=True):
    """One budget of a request: of its account, or of its token. `limit` is in micros, or a number of requests.

    `field` names it in the wallet. `ends`: when the last, the current and the next two windows end, in milliseconds since 1970.
    """

    owner: Literal["account", "token"]
    kind: Kind
    limit: int
    field: str
    ends: str


class BudgetUse(msgspec.Struct, frozen=True):
    """What is charged and held in the current window of a budget, and when that ends in milliseconds since 1970: None for never."""

    budget: Budget
    used: int
    ends_ms: int | None

    def covers(self, amount: int) -> bool:
        """Return whether a request that holds this amount may be sent now."""
        added = 1 if self.budget.kind == "requests" else amount
        return added == 0 or self.used + added <= self.budget.limit


def budget_in(mark: str, budgets: Sequence[Budget]) -> tuple[Budget, int | None]:
    """Return the budget of a mark, as the wallet returns it for a refused hold, and when its window ends; None for never."""
    field, _, ends = mark.rpartition("E")
    ends_ms = int(ends)
    return next(budget for budget in budgets if budget.field == field), None if ends_ms == NEVER else ends_ms


class Calendar:
    """The windows of one time zone."""

    def __init__(self, zone: tzinfo, clock: Clock) -> None:
        self._zone = zone
        self._clock = clock
        self._today = (0.0, 0.0)
        self._ends: dict[Kind, str] = {}

    def budgets(self, caller: Caller) -> tuple[Budget, ...]:
        """Return the budgets of a caller: those of its account, then those of its token."""
        if caller.budgets == NO_BUDGETS == caller.token_budgets:
            return ()
        self._look()
        token = (caller.counts_as or caller.token_id).rpartition("-")[2]
        return (*self._of("account", "", caller.budgets), *self._of("token", token, caller.token_budgets))

    def began_ms(self, kind: Literal["day", "week", "month"]) -> int:
        """Return when the current window began, in milliseconds since 1970."""
        self._look()
        return int(self._ends[kind].partition(" ")[0])

    def ends_at(self, ends_ms: int) -> str:
        """Return the end of a window in the time zone, as in 2026-12-01T00:00:00+01:00."""
        return datetime.fromtimestamp(ends_ms / 1000, self._zone).isoformat(timespec="seconds")

    def report(self, use: BudgetUse) -> dict[str, object]:
        """Return a budget and its use as JSON has it: whose, its window, what is used and what is left, when the window ends."""
        kind, ends_ms = use.budget.kind, use.ends_ms
        window, unit = ("day", "requests") if kind == "requests" else (kind, "micros")
        return {
            "of": use.budget.owner,
            "window": window,
            f"limit_{unit}": use.budget.limit,
            f"used_{unit}": use.used,
            f"left_{unit}": max(0, use.budget.limit - use.used),
            "ends_at": None if ends_ms is None else self.ends_at(ends_ms),
        }

    def _of(self, owner: Literal["account", "token"], suffix: str, budgets: Budgets) -> list[Budget]:
        limits = zip(FIELDS, msgspec.structs.astuple(budgets), strict=True)
        return [
            Budget(owner, kind, limit, FIELDS[kind] + suffix, self._ends[kind])
            for kind, limit in limits
            if limit is not None
        ]

    def _look(self) -> None:
        """Compute the windows where the day is another one than before."""
        begin_s, end_s = self._today
        if not begin_s <= (now_s := self._clock.time()) < end_s:
            self._turn(now_s)

    def _turn(self, now_s: float) -> None:
        """Compute the windows around this time."""
        today = datetime.fromtimestamp(now_s, self._zone).date()
        monday, first = today - timedelta(today.weekday()), today.replace(day=1)
        days = [today + timedelta(number) for number in range(4)]
        weeks = [monday + timedelta(7 * number) for number in range(4)]
        months = [first]
        while len(months) < 4:
            months.append((months[-1] + timedelta(31)).replace(day=1))
        self._today = (self._begin_ms(days[0]) / 1000, self._begin_ms(days[1]) / 1000)
        self._ends = {
            "day": self._text(days),
            "week": self._text(weeks),
            "month": self._text(months),
            "total": str(NEVER),
        }
        self._ends["requests"] = self._ends["day"]

    def _text(self, begins: list[date]) -> str:
        return " ".join(str(self._begin_ms(begin)) for begin in begins)

    def _begin_ms(self, day: date) -> int:
        """Return the first moment of a day, also where the clock skips its midnight."""
        return int(datetime(day.year, day.month, day.day, tzinfo=self._zone).timestamp() * 1000)
