"""`gateway account ledger` lists every change of a balance for people, scripts and spreadsheets."""

from __future__ import annotations

import asyncio
import csv
import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gateway.cli import account as module
from gateway.cli.commands import program
from gateway.store.accounts import Accounts
from gateway.store.client.client import Client
from gateway.store.money.wallet import Wallet
from tests.patience import PATIENCE_S
from tests.store.conftest import new_request_id, wallet_of_then

OLD_S = 100 * 24 * 3600


@pytest.fixture
async def request_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store_url: str, client: Client) -> str:
    """The request that `alice` was charged for. It also has a credit and an adjustment, and two archived lines."""
    file = tmp_path / "gateway.yaml"
    file.write_text(f"redis: {store_url}\ndata: {tmp_path}/data\nstore: {{timeout: {PATIENCE_S}}}\n")
    monkeypatch.setenv("GATEWAY_CONFIG", str(file))
    await Accounts(client).create("alice")
    past = wallet_of_then(client, OLD_S)
    for _ in range(2):
        await past.settle("alice", new_request_id(OLD_S), 7)
    assert (await run("archive", "alice", "--before", "90d", "--to", str(tmp_path / "archive"))).exit_code == 0
    wallet = Wallet(client)
    await wallet.credit("alice", "invoice-7", 5_000_000)
    charged = new_request_id()
    await wallet.settle("alice", charged, 123)
    await wallet.adjust("alice", "fix-1", -500_000, "credited\x1b[2J twice")
    return charged


async def ledger(*arguments: str) -> Any:
    return await run("ledger", *arguments)


async def run(*arguments: str) -> Any:
    return await asyncio.to_thread(CliRunner().invoke, program(), ["account", *arguments])


async def test_a_table_has_each_line_in_80_columns_and_names_what_was_archived(request_id: str) -> None:
    header, *lines = (await ledger("alice")).stdout.splitlines()
    assert header.split() == ["time", "kind", "amount", "request", "or", "transaction"]
    assert [line.split()[2:] for line in lines] == [
        ["adjust", "-0.50", "fix-1", "credited\\x1b[2J", "twice"],
        ["charge", "-0.000123", request_id],
        ["credit", "5.00", "invoice-7"],
        ["archived", "-0.000014", "2", "older", "lines,", "moved", "by", "`gateway", "account", "archive`"],
    ]
    assert max(map(len, lines[:3])) <= 80


async def test_json_and_csv_have_micros_and_every_line_that_is_asked_for(
    request_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PAGE", 2)
    lines = [json.loads(line) for line in (await ledger("alice", "--json")).stdout.splitlines()]
    assert [(line["kind"], line["amount_micros"]) for line in lines] == [
        ("adjust", -500_000),
        ("charge", -123),
        ("credit", 5_000_000),
        ("archived", -14),
    ]
    assert (lines[1]["request_id"], lines[1]["transaction"]) == (request_id, None)
    rows = list(csv.DictReader(StringIO((await ledger("alice", "--csv")).stdout)))
    assert [row["amount_micros"] for row in rows] == ["-500000", "-123", "5000000", "-14"]
    assert rows[0]["reason"] == "credited\\x1b[2J twice"
    few = await ledger("alice", "--limit", "1", "--json")
    assert [json.loads(line)["kind"] for line in few.stdout.splitlines()] == ["adjust"]
    assert few.stderr == "note: there are older lines; --limit 10 lists more of them\n"


async def test_an_account_without_lines_and_one_that_does_not_exist(request_id: str, client: Client) -> None:
    await Accounts(client).create("bob")
    assert (await ledger("bob")).stdout == "The ledger of `bob` has no lines yet.\n"
    missing = await ledger("carol")
    assert (missing.exit_code, missing.stdout) == (3, "")
    assert missing.stderr == "gateway: there is no account `carol`; look it up in the list of accounts\n"
