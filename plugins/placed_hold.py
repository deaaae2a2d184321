"""The hold of one exchange, and the errors for one that the wallet refuses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from gateway import (
    Alerts,
    Budget,
    BudgetUse,
    Calendar,
    Caller,
    Exchange,
    Hold,
    HoldReply,
    Price,
    Refused,
    Step,
    StoreAway,
    amount,
    budget_in,
)
from plugins.budgets import over
from plugins.shortage import Fitting, Shortage


class PlacedHold(msgspec.Struct):
    """The hold of one exchange, and the step that places it.

    `amount`: what is held, in micros. `full`: the most that the attempts so far can cost. `refused`: the wallet refused it.
    `extended`: it grew before a further attempt. `not_extended`: the hold that balance and budgets did not cover.
    `budgets`: those of the caller. `marks`: those that the hold counts in.
    """

    account: str
    price: Price
    amount: int
    full: int
    step: Step
    budgets: Sequence[Budget] = ()
    refused: bool = False
    marks: str = ""
    extended: bool = False
    not_extended: int = 0

    def refusal(self, reply: HoldReply, calendar: Calendar, max_holds: int, fitting: Fitting) -> Refused | StoreAway:
        """Return the error for this hold, or its extension, which the wallet refused."""
        if reply.outcome is Hold.BUDGET:
            budget, ends_ms = budget_in(reply.marks, self.budgets)
            return over(BudgetUse(budget, reply.used, ends_ms), calendar, self.amount, fitting)
        if reply.outcome is Hold.FUNDS:
            least = min([reply.available, *(each.limit for each in self.budgets if each.kind != "requests")])
            return insufficient(Shortage(self.amount, reply.available, fitting(least)))
        return refusal(reply.outcome, max_holds)

    def note_use(self, alerts: Alerts, caller: Caller, mark: str, used: int) -> None:
        """Note for alerts how much of a budget is used."""
        if all(budget.field != mark.partition("E")[0] for budget in self.budgets):
            return  # the store has the request with other budgets than those that it was sent with
        budget, ends_ms = budget_in(mark, self.budgets)
        token = caller.token_id if budget.owner == "token" else ""
        alerts.budget(caller.account, token, budget.kind, used, budget.limit, ends_at_ms=ends_ms)

    def log_capped(self, log: Any, exchange: Exchange, uncapped: int) -> None:
        """Log that the upstream used more than it was asked for: the difference is paid by the operator."""
        log.warning(
            "charge_capped",
            request_id=exchange.id,
            account=self.account,
            model=exchange.model,
            channel=exchange.channel,
            charged_micros=self.full,
            uncapped_micros=uncapped,
        )


def in_words(held: int, available: int, most: int, failed: int) -> str:
    """Return what is held for a request. It is charged `most` at most, of which `failed` is for failed attempts."""
    of_it = f", {amount(failed)} of it for failed attempts" if failed > 0 else ""
    return f"holds {amount(held)} of {amount(available)} available, and charges {amount(most)} at most{of_it}"


def insufficient(short: Shortage | None) -> Refused:
    """Return the error for a request that the balance does not cover; None: no balance covers it."""
    text = "The balance does not cover the most that this request can cost"
    if short is None:
        return Refused(402, "insufficient_balance", f"{text}. Lower max_tokens, or send less.")
    return Refused(
        402, "insufficient_balance", f"{text}: {short.figures}. Top up, or {short.cure}.", details=short.details()
    )


def refusal(outcome: Hold, max_holds: int) -> Refused | StoreAway:
    """Return the error for a hold that was refused for another reason than money."""
    match outcome:
        case Hold.BUSY:
            text = (
                f"This account has {max_holds} requests in progress, the most that it may have at once. "
                "Wait for some to end, then retry with backoff."
            )
            return Refused(429, "too_many_concurrent", text, retry_after_s=1)
        case Hold.INACTIVE | Hold.NO_ACCOUNT:
            return Refused(403, "account_inactive", "This account is not active. Ask the operator.")
        case _:
            return StoreAway(f"the wallet answered {outcome}")
