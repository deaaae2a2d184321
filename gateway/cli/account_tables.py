"""Accounts as they are printed: one with its fields, or all of them in a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from gateway.base.amounts import amount
from gateway.base.text import counted
from gateway.cli.allowance import budgets_in_words, limits_in_words
from gateway.cli.common import print_json, printable
from gateway.cli.tables import print_fields, print_table

if TYPE_CHECKING:
    from gateway.store.accounts import Account

OPTIONAL: Final = ("own limits", "own budgets", "credit line", "held")
"""Columns that are left out where the terminal has no room, the first one first."""


def print_account(account: Account, as_json: bool) -> None:
    """Print an account, for people or for scripts."""
    if as_json:
        print_json(json_of(account))
    else:
        print_fields(fields_of(account))


def json_of(account: Account) -> dict[str, Any]:
    """Return what scripts read of an account: also of one with further fields, these alone."""
    from gateway.store.accounts import Account

    return {name: getattr(account, name) for name in Account.__struct_fields__}


def fields_of(account: Account) -> dict[str, str]:
    """Return what people read of an account, by its names."""
    external = {"external id": printable(account.external_id)} if account.external_id else {}
    return {
        "id": account.id,
        **external,
        "status": account.status,
        "group": account.group,
        "balance": amount(account.balance_micros),
        "held": f"{amount(account.held_micros)} by {counted(account.holds, 'request')}",
        "credit line": amount(account.credit_line_micros),
        "models": ", ".join(account.models) or "all that the group allows",
        "own budgets": budgets_in_words(account.budgets),
        "own limits": limits_in_words(account.limits),
    }


def print_accounts(accounts: Sequence[Account]) -> None:
    """Print accounts, and below several of them the sums of their balances and of what is held.

    There is a column for external ids if there are any.
    """
    external = any(account.external_id for account in accounts)
    columns = ["id", "status", "group", "balance", "held", "credit line", "own budgets", "own limits"]
    rows = [
        [
            each.id,
            str(each.status),
            each.group,
            amount(each.balance_micros),
            amount(each.held_micros),
            amount(each.credit_line_micros),
            budgets_in_words(each.budgets, "-"),
            limits_in_words(each.limits, "-"),
        ]
        for each in accounts
    ]
    if several := len(rows) > 1:
        balance, held = sum(each.balance_micros for each in accounts), sum(each.held_micros for each in accounts)
        rows.append(["total", "", "", amount(balance), amount(held), "", "", ""])
    if external:
        names = [printable(each.external_id) or "-" for each in accounts]
        columns.insert(1, "external id")
        for name, row in zip([*names, ""], rows, strict=False):
            row.insert(1, name)
    print_table(
        columns,
        rows,
        total=several,
        optional=OPTIONAL,
        empty="There are no accounts yet. Create one: gateway account create alice --credit 5.00",
    )
