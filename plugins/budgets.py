"""What callers and operators read of a budget: the error where it is used up, and its line in an explanation."""

from __future__ import annotations

from typing import Final

from gateway import BudgetUse, Calendar, Refused
from gateway import amount as in_currency
from plugins.shortage import Fitting, Shortage

NAMES: Final = {
    "day": "budget of the day",
    "week": "budget of the week",
    "month": "budget of the month",
    "total": "total budget",
    "requests": "budget of requests a day",
}


def over(use: BudgetUse, calendar: Calendar, amount: int, fitting: Fitting) -> Refused:
    """Return the error for a request that a budget does not cover. `amount`: the most that it can cost, in micros."""
    budget = use.budget
    name = f"The {budget.owner}'s {NAMES[budget.kind]}"
    resets = f"It {_reset(use.ends_ms, calendar)}."
    if budget.kind == "requests":
        text = f"{name} is used up, with the requests in progress. {resets} Ask for a larger one."
        return Refused(402, "budget_exceeded", text, should_retry=False, details={"available_requests": 0})
    left = budget.limit - use.used
    short = Shortage(amount, left, fitting(left))
    spent = "even while nothing is spent" if amount > budget.limit else "beside what is spent and requests in progress"
    text = (
        f"{name} does not cover the most that this request can cost, {spent}: {short.figures}. {resets} "
        f"Ask for a larger one, or {short.cure}."
    )
    return Refused(402, "budget_exceeded", text, should_retry=False, details=short.details())


def described(use: BudgetUse, calendar: Calendar) -> str:
    """Return what a budget counts now, in words."""
    if use.budget.kind == "requests":
        used = f"has used {use.used} of {use.budget.limit} requests"
    else:
        used = f"has used {in_currency(use.used)} of {in_currency(use.budget.limit)}"
    return f"the {use.budget.owner}'s {NAMES[use.budget.kind]} {used} and {_reset(use.ends_ms, calendar)}"


def _reset(ends_ms: int | None, calendar: Calendar) -> str:
    return "does not reset" if ends_ms is None else f"resets at {calendar.ends_at(ends_ms)}"
