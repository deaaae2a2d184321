"""Budgets of an account and of a token: the calendar windows that they count, and their fields in the account's wallet.

The windows are those of a time zone: a day begins at midnight, a week on Monday, a month on its first day. The store chooses the
window of a request by its own clock, from the ends that the gateway computed, so nothing has to run at midnight.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta, tzinfo
from hashlib import blake2b
from typing import Final, Literal

import msgspec

from gateway.base.ids import Clock
from gateway.domain.facts import NO_BUDGETS, Budgets, Caller

Kind = Literal["day", "week", "month", "total", "requests", "session", "session_requests"]

FIELDS: Final[dict[Kind, str]] = {
    **{"day": "D", "week": "W", "month": "M", "total": "T", "requests": "R"},
    **{"session": "S", "session_requests": "Q"},
}
"""How the wallet's fields begin: of a budget of money in a window or in total, and of requests a day; of money and requests of a
session. These go on with a digest of the session, since an account has many at once."""
NO_HEADERS: Final[Mapping[str, str]] = {}
OF_SESSION: Final = ("session", "session_requests")
OF_REQUESTS: Final = ("requests", "session_requests")

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

    @property
    def of_session(self) -> bool:
        """Whether it is one of each session, which has no windows."""
        return self.kind in OF_SESSION

    @property
    def of_requests(self) -> bool:
        """Whether it is a number of requests, and not money."""
        return self.kind in OF_REQUESTS


class BudgetUse(msgspec.Struct, frozen=True):
    """What is charged and held in the current window of a budget, and when that ends in milliseconds since 1970: None for never."""

    budget: Budget
    used: int
    ends_ms: int | None

    def covers(self, amount: int) -> bool:
        """Return whether a request that holds this amount may be sent now."""
        added = 1 if self.budget.of_requests else amount
        return added == 0 or self.used + added <= self.budget.limit


def budget_in(mark: str, budgets: Sequence[Budget]) -> tuple[Budget, int | None]:
    """Return the budget of a mark, as the wallet returns it for a refused hold, and when its window ends; None for never."""
    field, _, ends = mark.rpartition("E")
    budget, ends_ms = next(budget for budget in budgets if budget.field == field), int(ends)
    return budget, None if ends_ms == NEVER or budget.of_session else ends_ms


def _digest(token: str, session: str) -> str:
    return blake2b(f"{token} {session}".encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()


class Calendar:
    """The windows of one time zone. `session_headers`: those by which requests name their session, the first that one has."""

    def __init__(self, zone: tzinfo, clock: Clock, session_headers: Sequence[str] = ()) -> None:
        self._session_headers = session_headers
        self._zone = zone
        self._clock = clock
        self._today = (0.0, 0.0)
        self._ends: dict[Kind, str] = {}

    def budgets(self, caller: Caller, headers: Mapping[str, str] = NO_HEADERS) -> tuple[Budget, ...]:
        """Return the budgets of a request: those of its account, then its token's. None of a session that it does not name."""
        if caller.budgets == NO_BUDGETS == caller.token_budgets:
            return ()
        self._look()
        session = next((value for name in self._session_headers if (value := headers.get(name))), "")
        token = (caller.counts_as or caller.token_id).rpartition("-")[2]
        return (
            *self._of("account", "", caller.budgets, session),
            *self._of("token", token, caller.token_budgets, session),
        )

    def today(self) -> tuple[float, float]:
        """Return when the present day began and when it ends: until then the windows of `budgets` are the same."""
        self._look()
        return self._today

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
        window = {"requests": "day", "session_requests": "session"}.get(kind, kind)
        unit = "requests" if kind in OF_REQUESTS else "micros"
        return {
            "of": use.budget.owner,
            "window": window,
            f"limit_{unit}": use.budget.limit,
            f"used_{unit}": use.used,
            f"left_{unit}": max(0, use.budget.limit - use.used),
            "ends_at": None if ends_ms is None else self.ends_at(ends_ms),
        }

    def _of(self, owner: Literal["account", "token"], suffix: str, budgets: Budgets, session: str) -> list[Budget]:
        found = []
        for kind, limit in zip(FIELDS, msgspec.structs.astuple(budgets), strict=True):
            if limit is not None and (session or kind not in OF_SESSION):
                own = _digest(suffix, session) if kind in OF_SESSION else suffix
                found.append(Budget(owner, kind, limit, FIELDS[kind] + own, self._ends[kind]))
        return found

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
        self._ends |= {"requests": self._ends["day"], **dict.fromkeys(OF_SESSION, str(NEVER))}

    def _text(self, begins: list[date]) -> str:
        return " ".join(str(self._begin_ms(begin)) for begin in begins)

    def _begin_ms(self, day: date) -> int:
        """Return the first moment of a day, also where the clock skips its midnight."""
        return int(datetime(day.year, day.month, day.day, tzinfo=self._zone).timestamp() * 1000)
