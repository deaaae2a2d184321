"""The commands for management tokens show the text of one once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from gateway.admin.actions.action import Scope
from gateway.cli import access
from tests.patience import PATIENCE_S

app = typer.Typer()
access.register(app)


@pytest.fixture(autouse=True)
def configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store_url: str) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text(
        f"redis: {store_url}\ndata: {tmp_path}\ntime_zone: Europe/Berlin\nstore: {{timeout: {PATIENCE_S}}}\n"
    )
    monkeypatch.setenv("GATEWAY_CONFIG", str(file))


def call(*arguments: str, answer: str = "") -> Any:
    return CliRunner().invoke(app, ["management-tokens", *arguments], input=answer)


def test_a_token_is_created_listed_and_revoked() -> None:
    assert "There are none yet" in call("list").stdout
    made = call("create", "the shop", "--scopes", "read, money", "--expires", "2099-01-31")
    assert made.exit_code == 0
    text = made.stdout.splitlines()[-1]
    assert text.startswith("sk-mgmt-")
    listed = call("list").stdout
    assert text not in listed
    assert "the shop" in listed
    assert "2099-01-31 00:00" in listed
    (token,) = (json.loads(line) for line in call("list", "--json").stdout.splitlines())
    assert token["scopes"] == ["money", "read"]
    assert call("revoke", token["id"], answer="n\n").exit_code == 1
    assert call("revoke", token["id"], "--yes").stdout == f"Revoked `{token['id']}`.\n"
    assert call("list", "--json").stdout == ""


def test_json_has_the_text_once() -> None:
    made = json.loads(call("create", "shop", "--scopes", "admin", "--json").stdout)
    assert made["token"].startswith(f"sk-mgmt-{made['id']}-")


@pytest.mark.parametrize("scope", Scope)
def test_a_token_may_have_each_scope(scope: Scope) -> None:
    assert json.loads(call("create", "shop", "--scopes", scope, "--json").stdout)["scopes"] == [scope]


@pytest.mark.parametrize("scopes", ["", "root", "read,root"])
def test_scopes_that_there_are_not_are_refused(scopes: str) -> None:
    assert call("create", "shop", "--scopes", scopes).exit_code == 2
