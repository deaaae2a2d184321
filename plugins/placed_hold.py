"""The hold of one exchange, and the errors for one that the wallet refuses."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gateway import Alerts, Budget, Calendar, Caller, Hold, HoldReply, Price, Refused, Step, StoreAway, budget_in
from plugins.budgets import over


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

    def refusal(self, reply: HoldReply, calendar: Calendar, max_holds: int) -> Refused | StoreAway:
        """Return the error for this hold, or its extension, which the wallet refused."""
        if reply.outcome is Hold.BUDGET:
            return over(*budget_in(reply.marks, self.budgets), calendar, self.amount)
        return refusal(reply.outcome, max_holds)

    def note_use(self, alerts: Alerts, caller: Caller, mark: str, used: int) -> None:
        """Note for alerts how much of a budget is used."""
        if all(budget.field != mark.partition("E")[0] for budget in self.budgets):
            return  # the store has the request with other budgets than those that it was sent with
        budget, ends_ms = budget_in(mark, self.budgets)
        token = caller.token_id if budget.owner == "token" else ""
        alerts.budget(caller.account, token, budget.kind, used, budget.limit, ends_at_ms=ends_ms)


def refusal(outcome: Hold, max_holds: int) -> Refused | StoreAway:
    """Return the error for a hold that was refused."""
    match outcome:
        case Hold.FUNDS:
            text = "The balance does not cover the most that this request can cost. Top up, or lower max_tokens."
            return Refused(402, "insufficient_balance", text)
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
