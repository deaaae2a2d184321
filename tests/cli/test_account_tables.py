"""The table of the accounts, which ends with their sums."""

from __future__ import annotations

import msgspec
import pytest

from gateway.admin.actions.accounts import ListedAccount
from gateway.admin.actions.inputs import BudgetWindow
from gateway.cli.account import print_accounts
from gateway.domain.facts import AccountLimits, Budgets
from gateway.store.accounts import AccountStatus


def account(name: str, balance: int, used: int = 0) -> ListedAccount:
    return ListedAccount(
        id=name,
        status=AccountStatus.ACTIVE,
        group="default",
        balance_micros=balance,
        held_micros=1,
        holds=1,
        credit_line_micros=0,
        models=(),
        limits=AccountLimits(),
        budgets=Budgets(),
        budget_use=[BudgetWindow("account", "month", 100, used, 100 - used)] if used else [],
    )


def test_several_accounts_have_a_total_and_fit_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    print_accounts([account("a" * 32, 5_000_000), account("bob", -1)])
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].split() == ["total", "4.999999"]  # what is held has no room
    assert max(map(len, lines)) <= 80
    print_accounts([account("bob", 1, used=80)])
    alone = capsys.readouterr().out
    assert "80 % of month" in alone
    by_requests = BudgetWindow("account", "day", limit_requests=5, used_requests=1, left_requests=4)
    print_accounts([msgspec.structs.replace(account("bob", 1), budget_use=[by_requests])])
    assert "20 % of requests a day" in capsys.readouterr().out
    assert "total" not in alone
