"""What callers and operators read of a budget: the error where it is used up, and its line in an explanation."""

from __future__ import annotations

from typing import Final

from gateway import Budget, BudgetUse, Calendar, Refused

NAMES: Final = {
    "day": "budget of the day",
    "week": "budget of the week",
    "month": "budget of the month",
    "total": "total budget",
    "requests": "budget of requests a day",
}


def over(budget: Budget, ends_ms: int | None, calendar: Calendar, amount: int) -> Refused:
    """Return the error for a request that a budget does not cover.

    `ends_ms`: when its window ends; None for never. `amount`: the most that the request can cost, in micros.
    """
    name = f"The {budget.owner}'s {NAMES[budget.kind]}"
    resets = f"It {_reset(ends_ms, calendar)}."
    if budget.kind == "requests":
        text = f"{name} is used up, with the requests in progress. {resets} Ask for a larger one."
    else:
        spent = (
            "even while nothing is spent" if amount > budget.limit else "beside what is spent and requests in progress"
        )
        text = (
            f"{name} does not cover the most that this request can cost, {spent}. {resets} "
            "Ask for a larger one, or lower max_tokens."
        )
    return Refused(402, "budget_exceeded", text, should_retry=False)


def described(use: BudgetUse, calendar: Calendar) -> str:
    """Return what a budget counts now, in words."""
    unit = "requests" if use.budget.kind == "requests" else "micros"
    used = f"has used {use.used} of {use.budget.limit} {unit}"
    return f"the {use.budget.owner}'s {NAMES[use.budget.kind]} {used} and {_reset(use.ends_ms, calendar)}"


def _reset(ends_ms: int | None, calendar: Calendar) -> str:
    return "does not reset" if ends_ms is None else f"resets at {calendar.ends_at(ends_ms)}"
