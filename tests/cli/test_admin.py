"""`gateway admin link` lets one person in; management tokens are shown once; `audit list` has what was changed."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from gateway.admin.actions.action import Scope
from gateway.admin.actions.audit import AuditEntry
from gateway.admin.actions.links import redeem
from gateway.cli.access import _changed
from gateway.cli.client import who
from gateway.cli.commands import add
from gateway.store.client.client import Client
from gateway.store.pepper import make_pepper
from tests.patience import PATIENCE_S

app = typer.Typer()
add(app, "account", "admin", "audit", "management-tokens", "gateways", "pepper", "verify")


@pytest.fixture(autouse=True)
def configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store_url: str) -> Path:
    file = tmp_path / "gateway.yaml"
    file.write_text(
        f"redis: {store_url}\ndata: {tmp_path}\nadmin: 0.0.0.0:9191\n"
        f"time_zone: Europe/Berlin\ngroups: {{default: {{}}}}\nstore: {{timeout: {PATIENCE_S}}}\n"
    )
    (tmp_path / "admin.token").write_text("an-admin-token-of-31-characters\n")
    monkeypatch.setenv("GATEWAY_CONFIG", str(file))
    monkeypatch.delenv("GATEWAY_ADMIN_TOKEN", raising=False)
    return file


def call(*arguments: str, answer: str = "") -> Any:
    return CliRunner().invoke(app, [*arguments], input=answer)


async def ticket_of(url: str, address: str) -> Any:
    client = Client.connect(url, timeout_s=PATIENCE_S)
    try:
        return await redeem(client, address.partition("ticket=")[2])
    finally:
        await client.close()


def test_a_link_has_the_scopes_and_the_name_that_are_asked_for(store_url: str) -> None:
    made = call("admin", "link", "--scopes", "read, money", "--name", "alice")
    assert made.exit_code == 0
    (address,) = made.stdout.splitlines()
    assert address.startswith("http://127.0.0.1:9191/enter?ticket=")
    assert "once, until" in made.stderr
    ticket = asyncio.run(ticket_of(store_url, address))
    assert (ticket.name, ticket.scopes, ticket.token) == ("alice", (Scope.MONEY, Scope.READ), "")
    assert asyncio.run(ticket_of(store_url, address)) is None


def test_without_more_it_is_for_everything_and_for_who_runs_the_command(store_url: str) -> None:
    made = json.loads(call("admin", "link", "--json").stdout)
    assert set(made["scopes"]) == set(Scope)
    ticket = asyncio.run(ticket_of(store_url, made["url"]))
    assert (ticket.name, made["name"], ticket.maker.startswith("command of ")) == ("", "", True)


@pytest.mark.parametrize("scopes", ["root", "read,root"])
def test_scopes_that_there_are_not_are_refused(scopes: str) -> None:
    assert call("admin", "link", "--scopes", scopes).exit_code == 2


def test_without_an_admin_token_or_pages_there_is_no_link(configured: Path) -> None:
    (configured.parent / "admin.token").unlink()
    made = call("admin", "link")
    assert (made.exit_code != 0, "admin.token is missing" in str(made.exception)) == (True, True)
    configured.write_text(configured.read_text().replace("0.0.0.0:9191", "null"))
    (configured.parent / "admin.token").write_text("an-admin-token-of-31-characters\n")
    made = call("admin", "link")
    assert (made.exit_code != 0, "no pages" in str(made.exception)) == (True, True)


def test_a_link_to_a_portal_that_nobody_serves_yet_has_a_note(configured: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as served:
        port = served.getsockname()[1]
        configured.write_text(f"{configured.read_text()}portal: {{listen: '127.0.0.1:{port}'}}\n")
        accounts = typer.Typer()
        add(accounts, "account")
        assert CliRunner().invoke(accounts, ["account", "create", "alice"]).exit_code == 0
        made = CliRunner().invoke(accounts, ["account", "link", "alice"])
        assert (made.exit_code, "nothing answers" in made.stderr) == (0, False)
    made = CliRunner().invoke(accounts, ["account", "link", "alice"])
    assert (made.exit_code, f"nothing answers at 127.0.0.1:{port}" in made.stderr) == (0, True)


def test_a_token_is_created_listed_and_revoked() -> None:
    assert "There are none yet" in call("management-tokens", "list").stdout
    made = call("management-tokens", "create", "the shop", "--scopes", "read, money", "--expires", "2099-01-31")
    assert made.exit_code == 0
    text = made.stdout.splitlines()[-1]
    assert text.startswith("sk-mgmt-")
    listed = call("management-tokens", "list").stdout
    assert text not in listed
    assert "the shop" in listed
    assert "2099-01-31 00:00" in listed
    (token,) = (json.loads(line) for line in call("management-tokens", "list", "--json").stdout.splitlines())
    assert token["scopes"] == ["money", "read"]
    assert call("management-tokens", "revoke", token["id"], answer="n\n").exit_code == 1
    assert call("management-tokens", "revoke", token["id"], "--yes").stdout == f"Revoked `{token['id']}`.\n"
    assert call("management-tokens", "list", "--json").stdout == ""


def test_json_has_the_text_once() -> None:
    made = json.loads(call("management-tokens", "create", "shop", "--scopes", "admin", "--json").stdout)
    assert made["token"].startswith(f"sk-mgmt-{made['id']}-")


@pytest.mark.parametrize("scope", Scope)
def test_a_token_may_have_each_scope(scope: Scope) -> None:
    assert json.loads(call("management-tokens", "create", "shop", "--scopes", scope, "--json").stdout)["scopes"] == [
        scope
    ]


@pytest.mark.parametrize("scopes", ["", "root", "read,root"])
def test_a_token_has_scopes_that_there_are(scopes: str) -> None:
    assert call("management-tokens", "create", "shop", "--scopes", scopes).exit_code == 2


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
    assert _changed(entry) == "budgets.month: none -> 0.05, models: ['a'] -> none"
