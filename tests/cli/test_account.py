"""The account commands print accounts in words or in JSON, and errors in one line."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from gateway.base.crash_points import EXIT_CODE
from gateway.base.errors import GatewayError
from gateway.cli.commands import add
from gateway.store.accounts import AccountError
from tests.cli.processes import gateway
from tests.patience import PATIENCE_S

app = typer.Typer()
add(app, "account")

NO_BUDGETS = dict.fromkeys(
    ("day_micros", "week_micros", "month_micros", "total_micros", "requests", "session_micros", "session_requests")
)
WRONG_BUDGETS = {
    "hour=1": "`hour=1` names no window: write day=0.50, week=2, month=5, total=100, requests=1000 or session=5",
    "1.00": "names no window",
    "": "names no window",
    "Day=1": "names no window",
    "day": "`day` names no amount: write day=0.50",
    "day=": "`day=` names no amount",
    "day=one": "`one` is not an amount; write it as in 5.00",
    "day=nan": "`nan` is not an amount; write it as in 5.00",
    "day=snan": "`snan` is not an amount; write it as in 5.00",
    "day=inf": "`inf` is not an amount; write it as in 5.00",
    "day=-1": "`day=-1` is no budget: give more than 0 and at most 1000000000, or day=none",
    "week=0": "`week=0` is no budget: give more than 0 and at most 1000000000, or week=none",
    "month=1000000000.01": "is no budget: give more than 0 and at most 1000000000, or month=none",
    "total=1e30": "`1e30` is not an amount; write it as in 5.00",
    "total=10000000000": "`10000000000` is too large: give less than 9007199254",
    "total=1" + "0" * 999: "is too large",
    "day=0.0000001": "`0.0000001` cannot be stored exactly; use at most six decimals",
    "day=5.0000000000000000000000000000001": "use at most six decimals",
    "requests=1.5": "`requests=1.5` is not a number of requests; write requests=1000, or requests=none",
    "requests=0": "is not a number of requests;",
    "requests=-1": "is not a number of requests;",
    "requests=1" + "0" * 30: "is not a number of requests;",
}


@pytest.fixture(autouse=True)
def configured(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    store_url: str,
) -> None:
    """A configuration with two groups, on an empty store."""
    file = tmp_path / "gateway.yaml"
    groups = "{default: {}, trial: {budgets: {month: 5, requests: 9}}}"
    file.write_text(f"redis: {store_url}\ndata: {tmp_path}\ngroups: {groups}\nstore: {{timeout: {PATIENCE_S}}}\n")
    monkeypatch.setenv("GATEWAY_CONFIG", str(file))


def call(*arguments: str, answer: str = "") -> Any:
    return CliRunner().invoke(app, ["account", *arguments], input=answer)


def run(*arguments: str, answer: str = "") -> str:
    result = call(*arguments, answer=answer)
    assert result.exit_code == 0, result.output
    return str(result.output)


def as_json(*arguments: str) -> Any:
    return json.loads(CliRunner().invoke(app, ["account", *arguments, "--json"]).stdout)


def refused(*arguments: str) -> str:
    """Return the error that a command raises; the command line prints it on one line and exits with 1."""
    error = call(*arguments).exception
    assert isinstance(error, GatewayError)
    return str(error)


def misused(*arguments: str) -> str:
    result = call(*arguments)
    assert result.exit_code == 2, result.output
    return " ".join(result.output.replace("│", " ").split())


def test_a_new_account_has_its_first_credit_and_its_group() -> None:
    made = as_json("create", "alice", "--group", "trial", "--credit", "5.00", "--name", "Acme")
    assert made.pop("created_at")
    assert made == {
        "id": "alice",
        "status": "active",
        "group": "trial",
        "balance_micros": 5_000_000,
        "held_micros": 0,
        "holds": 0,
        "credit_line_micros": 0,
        "models": [],
        "limits": {"requests_per_minute": None, "tokens_per_minute": None, "concurrent": None},
        "budgets": NO_BUDGETS,
        "external_id": "",
        "name": "Acme",
        "metadata": {},
    }
    assert as_json("show", "alice")["balance_micros"] == 5_000_000
    assert as_json("create", "--credit", "1.00")["balance_micros"] == 1_000_000
    assert "was booked before" in run("credit", "alice", "5.00", "--transaction", "opening-alice")
    assert as_json("show", "alice")["balance_micros"] == 5_000_000


def test_show_prints_amounts_in_currency_units() -> None:
    run("create", "alice", "--credit", "0.000123")
    lines = [line.split(maxsplit=1) for line in run("show", "alice").splitlines()]
    shown = {name: value.strip() for name, value in lines}
    assert shown["id"] == "alice"
    assert shown["balance"] == "0.000123"
    assert shown["held"] == "0.00 by 0 requests"


def test_an_account_is_created_once() -> None:
    run("create", "alice")
    assert "exists already" in refused("create", "alice", "--credit", "5.00")
    assert as_json("show", "alice")["balance_micros"] == 0


def test_a_bad_id_and_an_unknown_group_are_refused() -> None:
    assert "3 to 32" in refused("create", "Alice")
    for command in (("create", "alice", "--group", "nope"), ("set", "alice", "--group", "nope")):
        error = call(*command).exception
        assert isinstance(error, GatewayError)
        assert error.kind == "not_found"
        assert "no group `nope`; it has: default, trial" in str(error)
    assert "no account" in refused("show", "alice")


@pytest.mark.parametrize("credit", ["five", "0", "-1", "0.0000001", "nan", "snan", "inf", "1e30", "1e999999999", ""])
def test_an_invalid_amount_is_wrong_usage(credit: str) -> None:
    assert "--credit" in misused("create", "alice", f"--credit={credit}")
    assert "no account" in refused("show", "alice")


def test_the_list_shows_every_account_in_order() -> None:
    assert "no accounts yet" in run("list")
    for name in ("carol", "alice", "bob"):
        run("create", name, "--credit", "1")
    assert [line.split()[0] for line in run("list").splitlines()] == ["id", "alice", "bob", "carol", "total"]
    assert [json.loads(line)["id"] for line in run("list", "--json").splitlines()] == ["alice", "bob", "carol"]


def test_a_credit_is_booked_once_for_its_transaction() -> None:
    run("create", "alice")
    assert as_json("credit", "alice", "2.50", "--transaction", "t1")["balance_micros"] == 2_500_000
    again = run("credit", "alice", "2.50", "--transaction", "t1")
    assert "was booked before" in again
    assert "booked before with another amount" in refused("credit", "alice", "3", "--transaction", "t1")
    assert as_json("credit", "alice", "1", "--transaction", "t2")["balance_micros"] == 3_500_000
    assert "no account `bob`" in refused("credit", "bob", "1", "--transaction", "t3")
    assert "--transaction" in misused("credit", "alice", "1")
    assert "64 letters" in misused("credit", "alice", "1", "--transaction", "a b")


def test_an_adjustment_goes_up_and_down_and_needs_a_reason() -> None:
    run("create", "alice", "--credit", "1.00")
    assert as_json("adjust", "alice", "-0.25", "--transaction", "f1", "--reason", "twice")["balance_micros"] == 750_000
    assert as_json("adjust", "alice", "0.05", "--transaction", "f2", "--reason", "kind")["balance_micros"] == 800_000
    assert "--reason" in misused("adjust", "alice", "1", "--transaction", "f3")
    assert "--resaon" in misused("adjust", "alice", "-1", "--transaction", "f3", "--reason", "r", "--resaon", "x")


def test_set_changes_only_what_is_given() -> None:
    run("create", "alice", "--credit", "1.00")
    run("set", "alice", "--credit-line", "2", "--models", "a, b-*", "--concurrent", "3")
    changed = as_json("set", "alice", "--group", "trial", "--requests-per-minute", "600")
    assert changed["group"] == "trial"
    assert changed["models"] == ["a", "b-*"]
    assert changed["balance_micros"] == 1_000_000
    assert changed["credit_line_micros"] == 2_000_000
    assert changed["limits"] == {"requests_per_minute": 600, "tokens_per_minute": None, "concurrent": 3}
    back = as_json("set", "alice", "--concurrent", "0", "--models", "")
    assert back["models"] == []
    assert back["limits"] == {"requests_per_minute": 600, "tokens_per_minute": None, "concurrent": None}
    assert "--credit-line" in misused("set", "alice", "--credit-line=-1")
    assert "--tokens-per-minute" in misused("set", "alice", "--tokens-per-minute", "1000000000")


def test_budgets_are_set_window_by_window_and_taken_away() -> None:
    created = as_json("create", "alice", "--budget", "day=0.50", "--budget", "requests=100")
    assert created["budgets"] == NO_BUDGETS | {"day_micros": 500_000, "requests": 100}
    run("set", "alice", "--budget", "month=20", "--budget", "total=0.000001")
    changed = as_json("set", "alice", "--budget", "day=none", "--budget", "week=1000000000", "--concurrent", "3")
    budgets = {"week_micros": 10**15, "month_micros": 20_000_000, "total_micros": 1, "requests": 100}
    assert changed["budgets"] == NO_BUDGETS | budgets
    assert as_json("set", "alice", "--credit-line", "1")["budgets"] == NO_BUDGETS | budgets
    words = "week 1000000000.00, month 20.00, total 0.000001, requests 100 a day"
    assert words in run("show", "alice")
    assert words in run("list")
    assert "concurrent 3" in run("list")
    every = [part for window in ("week", "month", "total", "requests") for part in ("--budget", f"{window}=none")]
    assert as_json("set", "alice", *every)["budgets"] == NO_BUDGETS
    assert re.search("own budgets +none", run("show", "alice"))


def test_show_has_what_is_used_of_each_budget_of_the_account_and_its_group() -> None:
    run("create", "alice", "--group", "trial", "--budget", "month=0.5", "--budget", "total=7")
    used = as_json("show", "alice")["budget_use"]
    assert [(each["window"], each["ends_at"] is None) for each in used] == [
        ("month", False),
        ("total", True),
        ("day", False),
    ]
    assert used[1] == {
        "of": "account",
        "window": "total",
        "limit_micros": 7_000_000,
        "used_micros": 0,
        "left_micros": 7_000_000,
        "ends_at": None,
    }
    assert (used[2]["limit_requests"], used[2]["used_requests"]) == (9, 0)
    shown = run("show", "alice")
    assert re.search(r"budget, month +0\.00 of 0\.50, until 20..-..-01T00:00:00\+00:00\n", shown)
    assert re.search(r"budget, total +0\.00 of 7\.00\n", shown)
    assert re.search(r"budget, requests a day +0 of 9, until", shown)
    run("create", "bobby")
    assert "budget," not in run("show", "bobby")


def test_a_wrong_budget_is_one_clear_line() -> None:
    run("create", "alice", "--budget", "day=1")
    for wrong, said in WRONG_BUDGETS.items():
        for command in (("set", "alice"), ("create", "bobby")):
            assert said in misused(*command, f"--budget={wrong}"), wrong
    assert "given more than once" in misused("set", "alice", "--budget", "week=1", "--budget", "week=none")
    assert as_json("show", "alice")["budgets"] == NO_BUDGETS | {"day_micros": 1_000_000}
    assert "no account" in refused("show", "bobby")


def test_a_suspended_account_is_resumed() -> None:
    run("create", "alice")
    assert as_json("suspend", "alice")["status"] == "suspended"
    assert as_json("resume", "alice")["status"] == "active"
    assert "no account" in refused("suspend", "bob")


def test_closing_asks_for_confirmation_and_is_permanent() -> None:
    run("create", "alice", "--credit", "1.50")
    for answer in ("n\n", ""):
        result = call("close", "alice", answer=answer)
        assert result.exit_code == 1
        assert "balance 1.50" in result.output
    assert as_json("show", "alice")["status"] == "active"
    assert as_json("close", "alice", "--yes")["status"] == "closed"
    assert "closed for good" in refused("resume", "alice")
    run("create", "bob")
    run("close", "bob", answer="y\n")
    assert as_json("show", "bob")["status"] == "closed"


COMMANDS = ["create", "list", "show", "credit", "adjust", "set", "suspend", "resume", "close", "archive"]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example(command: str) -> None:
    assert f"gateway account {command}" in " ".join(run(command, "--help").split())


def test_an_external_id_names_the_account_wherever_its_id_does() -> None:
    assert as_json("create", "alice", "--external-id", "a@example.com")["external_id"] == "a@example.com"
    run("create", "robert")
    named = "ext:a@example.com"
    run("credit", named, "5.00", "--transaction", "t1")
    run("adjust", named, "-1.00", "--transaction", "t2", "--reason", "too much")
    run("suspend", named)
    run("resume", named)
    shown = run("show", named)
    assert "a@example.com" in shown
    assert "4.00" in shown
    assert "t2" in run("ledger", named)
    assert [line.split()[:2] for line in run("list").splitlines()] == [
        ["id", "external"],
        ["alice", "a@example.com"],
        ["robert", "-"],
        ["total", "4.00"],
    ]
    taken = call("set", "robert", "--external-id", "a@example.com").exception
    assert str(taken).startswith("the external id 'a@example.com' belongs to the account `alice`")
    run("set", named, "--external-id", "")
    assert "external id" not in run("show", "alice")
    unknown = call("show", named).exception
    assert isinstance(unknown, AccountError)
    assert unknown.kind == "not_found"


def test_models_that_are_none_or_leave_none_are_warned_of(tmp_path: Path) -> None:
    file = tmp_path / "gateway.yaml"
    model = "{input: 1, output: 2, channels: [one]}"
    more = f"channels: {{one: {{base_url: 'http://h/v1'}}}}\nmodels: {{small: {model}, large: {model}}}\n"
    file.write_text(file.read_text().replace("trial: {", "trial: {models: [large], ") + more)
    run("create", "alice")
    note = CliRunner().invoke(app, ["account", "set", "alice", "--models", "smal,large"]).stderr
    assert note == "note: there is no model `smal`; did you mean `small`?\n"
    notes = CliRunner().invoke(app, ["account", "set", "alice", "--models", "nothing,gpt-*"]).stderr.splitlines()
    assert notes == [
        "note: there is no model `nothing`; known: small, large",
        "note: no model matches `gpt-*`; known: small, large",
        "note: `alice` may use no model now: its group, its account and the token allow none in common",
    ]
    assert CliRunner().invoke(app, ["account", "set", "alice", "--models", "small"]).stderr == ""
    assert "may use no model now" in CliRunner().invoke(app, ["account", "set", "alice", "--group", "trial"]).stderr
    assert CliRunner().invoke(app, ["account", "set", "alice", "--models", ""]).stderr == ""


async def test_a_command_that_is_killed_while_it_gives_an_external_id_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for label, exists in (("external.claimed", False), ("external.written", True)):
        monkeypatch.setenv("GATEWAY_CRASH_AT", label)
        name, external = f"{label[9:]}1", f"{label}@example.com"
        code, _, _ = await gateway("account", "create", name, "--external-id", external, cwd=tmp_path)
        assert code == EXIT_CODE
        monkeypatch.delenv("GATEWAY_CRASH_AT")
        repeated = await asyncio.to_thread(call, "create", name, "--external-id", external)
        assert (repeated.exit_code == 0) is not exists
        assert await asyncio.to_thread(as_json, "show", f"ext:{external}") == await asyncio.to_thread(
            as_json, "show", name
        )


def test_a_change_of_nothing_says_how_to_change_something() -> None:
    run("create", "alice")
    assert "say what to change" in refused("set", "alice")


def test_who_is_not_there_to_confirm_is_told_how_to_go_without() -> None:
    run("create", "alice")
    assert "give --yes where there is no terminal" in refused("close", "alice")
    assert call("close", "alice", answer="n\n").exit_code == 1
    assert as_json("show", "alice")["status"] == "active"
    assert "closed" in run("close", "alice", answer="y\n")
