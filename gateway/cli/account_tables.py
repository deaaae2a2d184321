"""Accounts as they are printed: one with its fields, or all of them in a table."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.cli.allowance import budgets_in_words, limits_in_words
from gateway.cli.common import amount, print_fields, print_json, print_table, printable
from gateway.store.accounts import Account


def print_account(account: Account, as_json: bool) -> None:
    """Print an account, for people or for scripts."""
    if as_json:
        print_json(account)
    else:
        print_fields(fields_of(account))


def fields_of(account: Account) -> dict[str, str]:
    """Return what people read of an account, by its names."""
    external = {"external id": printable(account.external_id)} if account.external_id else {}
    return {
        "id": account.id,
        **external,
        "status": account.status,
        "group": account.group,
        "balance": amount(account.balance_micros),
        "held": f"{amount(account.held_micros)} by {account.holds} requests",
        "credit line": amount(account.credit_line_micros),
        "models": ", ".join(account.models) or "all that the group allows",
        "own budgets": budgets_in_words(account.budgets),
        "own limits": limits_in_words(account.limits),
    }


def print_accounts(accounts: Sequence[Account]) -> None:
    """Print a table of accounts. It has a column for external ids if there are any."""
    external = any(account.external_id for account in accounts)
    columns = ["id", "status", "group", "balance", "held", "credit line", "own budgets", "own limits"]
    rows = [
        [
            each.id,
            each.status,
            each.group,
            amount(each.balance_micros),
            amount(each.held_micros),
            amount(each.credit_line_micros),
            budgets_in_words(each.budgets, "-"),
            limits_in_words(each.limits, "-"),
        ]
        for each in accounts
    ]
    if external:
        columns.insert(1, "external id")
        for each, row in zip(accounts, rows, strict=True):
            row.insert(1, printable(each.external_id) or "-")
    print_table(
        columns, rows, empty="There are no accounts yet. Create one: gateway account create alice --credit 5.00"
    )
