"""The table of `gateway account list`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from gateway.amounts import amount
from gateway.cli.allowance import budgets_in_words, limits_in_words
from gateway.cli.tables import print_table

if TYPE_CHECKING:
    from gateway.store.accounts import Account

COLUMNS: Final = ("id", "status", "group", "balance", "held", "credit line", "own budgets", "own limits")
OPTIONAL: Final = ("own limits", "own budgets", "credit line", "held")


def print_accounts(accounts: Sequence[Account]) -> None:
    """Print accounts, and below several of them the sums of their balances and of what is held."""
    rows = [
        (
            each.id,
            str(each.status),
            each.group,
            amount(each.balance_micros),
            amount(each.held_micros),
            amount(each.credit_line_micros),
            budgets_in_words(each.budgets, "-"),
            limits_in_words(each.limits, "-"),
        )
        for each in accounts
    ]
    if several := len(rows) > 1:
        balance, held = sum(each.balance_micros for each in accounts), sum(each.held_micros for each in accounts)
        rows.append(("total", "", "", amount(balance), amount(held), "", "", ""))
    print_table(
        COLUMNS,
        rows,
        total=several,
        optional=OPTIONAL,
        empty="There are no accounts yet. Create one: gateway account create alice --credit 5.00",
    )
