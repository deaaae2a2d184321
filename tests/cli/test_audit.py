"""`gateway audit list` shows what commands changed, here and over the API."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from gateway.admin.actions.audit import AuditEntry
from gateway.cli import access, account, maintenance
from gateway.cli.access import _changed
from gateway.cli.client import who
from gateway.store.pepper import make_pepper
from tests.patience import PATIENCE_S

app = typer.Typer()
account.register(app)
access.register(app)
maintenance.register(app)


@pytest.fixture(autouse=True)
def configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store_url: str) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text(
        f"redis: {store_url}\ndata: {tmp_path}\ngroups: {{default: {{}}}}\nstore: {{timeout: {PATIENCE_S}}}\n"
    )
    monkeypatch.setenv("GATEWAY_CONFIG", str(file))


def call(*arguments: str) -> Any:
    return CliRunner().invoke(app, [*arguments])


def test_it_shows_who_changed_what(monkeypatch: pytest.MonkeyPatch) -> None:
    assert call("audit", "list").stdout == "Nothing was changed yet, or nothing of that kind.\n"
    assert call("account", "create", "alice").exit_code == 0
    assert call("account", "suspend", "alice").exit_code == 0
    lines = call("audit", "list").stdout.splitlines()
    assert lines[0].split() == ["at", "actor", "operation", "target", "outcome", "changed"]
    assert who() in lines[1]
    assert "accounts.change" in lines[1]
    assert lines[1].endswith("done     status: active -> suspended")
    assert len(call("audit", "list", "--limit", "1", "--json").stdout.splitlines()) == 1
    found = [
        json.loads(line)
        for line in call("audit", "list", "--operation", "accounts.create", "--json").stdout.splitlines()
    ]
    assert [(entry["target"], entry["outcome"]) for entry in found] == [("alice", "done")]
    assert call("audit", "list", "--since", "1d", "--target", "alice", "--json").stdout.count("\n") == 2
    assert call("audit", "list", "--since", "sometimes").exit_code == 2


def test_also_what_is_no_operation_of_the_api_leaves_an_entry(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    assert call("account", "create", "alice").exit_code == 0
    archived = call("account", "archive", "--all", "--before", "90d", "--to", str(tmp_path / "archive"))
    assert archived.exit_code == 0, archived.output
    make_pepper(tmp_path)
    assert call("pepper", "rotate", "--lost", "--yes").exit_code == 0
    entries = [json.loads(line) for line in call("audit", "list", "--json").stdout.splitlines()]
    assert [(entry["operation"], entry["target"], entry["outcome"]) for entry in entries] == [
        ("pepper.rotate", "every token is void", "done"),
        ("accounts.archive", "(all)", "done"),
        ("accounts.create", "alice", "done"),
    ]
    assert {entry["actor"] for entry in entries} == {who()}


def test_fields_within_fields_are_shown_where_they_differ() -> None:
    before = {"budgets": {"day_micros": None, "month_micros": None}, "name": "x", "models": ["a"]}
    after = {"budgets": {"day_micros": None, "month_micros": 50_000}, "name": "x", "models": []}
    entry = AuditEntry("1-0", "", "", "", "", "done", before=before, after=after)
    assert _changed(entry) == "budgets.month_micros: none -> 50000, models: ['a'] -> none"
