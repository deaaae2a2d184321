"""`gateway admin link` prints an address that lets one person in, at the configuration's gateway or at that of `--api`."""

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
from gateway.admin.actions.links import redeem
from gateway.cli import access, account
from gateway.store.client.client import Client
from tests.patience import PATIENCE_S

app = typer.Typer()
access.register(app)


@pytest.fixture(autouse=True)
def configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store_url: str) -> Path:
    file = tmp_path / "gateway.yaml"
    file.write_text(f"redis: {store_url}\ndata: {tmp_path}\nadmin: 0.0.0.0:9191\nstore: {{timeout: {PATIENCE_S}}}\n")
    (tmp_path / "admin.token").write_text("an-admin-token-of-31-characters\n")
    monkeypatch.setenv("GATEWAY_CONFIG", str(file))
    monkeypatch.delenv("GATEWAY_ADMIN_TOKEN", raising=False)
    return file


def call(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["admin", *arguments])


async def ticket_of(url: str, address: str) -> Any:
    client = Client.connect(url, timeout_s=PATIENCE_S)
    try:
        return await redeem(client, address.partition("ticket=")[2])
    finally:
        await client.close()


def test_a_link_has_the_scopes_and_the_name_that_are_asked_for(store_url: str) -> None:
    made = call("link", "--scopes", "read, money", "--name", "alice")
    assert made.exit_code == 0
    (address,) = made.stdout.splitlines()
    assert address.startswith("http://127.0.0.1:9191/enter?ticket=")
    assert "once, until" in made.stderr
    ticket = asyncio.run(ticket_of(store_url, address))
    assert (ticket.name, ticket.scopes, ticket.token) == ("alice", (Scope.MONEY, Scope.READ), "")
    assert asyncio.run(ticket_of(store_url, address)) is None


def test_without_more_it_is_for_everything_and_for_who_runs_the_command(store_url: str) -> None:
    made = json.loads(call("link", "--json").stdout)
    assert set(made["scopes"]) == set(Scope)
    ticket = asyncio.run(ticket_of(store_url, made["url"]))
    assert (ticket.name, made["name"], ticket.maker.startswith("command of ")) == ("", "", True)


@pytest.mark.parametrize("scopes", ["root", "read,root"])
def test_scopes_that_there_are_not_are_refused(scopes: str) -> None:
    assert call("link", "--scopes", scopes).exit_code == 2


def test_without_an_admin_token_or_pages_there_is_no_link(configured: Path) -> None:
    (configured.parent / "admin.token").unlink()
    made = call("link")
    assert (made.exit_code != 0, "admin.token is missing" in str(made.exception)) == (True, True)
    configured.write_text(configured.read_text().replace("0.0.0.0:9191", "null"))
    (configured.parent / "admin.token").write_text("an-admin-token-of-31-characters\n")
    made = call("link")
    assert (made.exit_code != 0, "no pages" in str(made.exception)) == (True, True)


def test_a_link_to_a_portal_that_nobody_serves_yet_has_a_note(configured: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as served:
        port = served.getsockname()[1]
        configured.write_text(
            f"{configured.read_text()}portal: {{listen: '127.0.0.1:{port}'}}\ngroups: {{default: {{}}}}\n"
        )
        accounts = typer.Typer()
        account.register(accounts)
        assert CliRunner().invoke(accounts, ["account", "create", "alice"]).exit_code == 0
        made = CliRunner().invoke(accounts, ["account", "link", "alice"])
        assert (made.exit_code, "nothing answers" in made.stderr) == (0, False)
    made = CliRunner().invoke(accounts, ["account", "link", "alice"])
    assert (made.exit_code, f"nothing answers at 127.0.0.1:{port}" in made.stderr) == (0, True)
