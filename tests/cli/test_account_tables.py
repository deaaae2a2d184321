"""The table of the accounts, which ends with their sums."""

from __future__ import annotations

import pytest

from gateway.cli.account import print_accounts
from gateway.domain.facts import AccountLimits, Budgets
from gateway.store.accounts import Account, AccountStatus


def account(name: str, balance: int) -> Account:
    return Account(
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
    )


def test_several_accounts_have_a_total_and_fit_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    print_accounts([account("a" * 32, 5_000_000), account("bob", -1)])
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].split() == ["total", "4.999999", "0.000002"]
    assert max(map(len, lines)) <= 80
    print_accounts([account("bob", 1)])
    assert "total" not in capsys.readouterr().out
