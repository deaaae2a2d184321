"""`gateway account ledger` lists every change of a balance for people, scripts and spreadsheets."""

from __future__ import annotations

import asyncio
import csv
import json
import os
from collections.abc import AsyncIterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gateway.base.crash_points import EXIT_CODE
from gateway.cli import account as module
from gateway.cli.commands import program
from gateway.store.accounts import Accounts
from gateway.store.client.client import Client
from gateway.store.money.wallet import Wallet
from tests.forked import FORKED
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
    assert (await ledger("bob", "--kind", "late")).stdout == "The ledger of `bob` has no line of the kind `late`.\n"
    missing = await ledger("carol")
    assert (missing.exit_code, missing.stdout) == (3, "")
    assert missing.stderr == "gateway: there is no account `carol`; look it up in the list of accounts\n"


class Command:
    """The command, on a store where `alice` has 3 old lines, `bob` one, `carol` none."""

    def __init__(self, file: Path, folder: Path) -> None:
        self.file, self.folder = file, folder

    async def run(self, *arguments: str, code: int = 0) -> str:
        """Return what the command prints."""
        command = [*arguments, "--config", str(self.file)]
        result = await asyncio.to_thread(CliRunner().invoke, program(), command)
        assert result.exit_code == code, result.output
        return str(result.output)

    async def archive(self, *arguments: str, code: int = 0) -> str:
        return await self.run("account", "archive", "--before", "90d", "--to", str(self.folder), *arguments, code=code)

    async def verified(self, *more: str, code: int = 0) -> Any:
        """Return the report of `gateway verify`."""
        return json.loads(await self.run("verify", "--json", *more, code=code))

    def texts(self) -> dict[str, int]:
        """Return how many lines each file has, and assert that none is there twice."""
        lines_of = {file.stem: file.read_text().splitlines() for file in self.folder.iterdir()}
        assert all(len(lines) == len(set(lines)) for lines in lines_of.values())
        return {name: len(lines) for name, lines in lines_of.items()}


@pytest.fixture
async def command(tmp_path: Path, store_url: str, client: Client) -> AsyncIterator[Command]:
    past = wallet_of_then(client, OLD_S)
    for name, count in (("alice", 3), ("bob", 1), ("carol", 0)):
        await Accounts(client).create(name)
        await asyncio.gather(*(past.settle(name, new_request_id(OLD_S), 1) for _ in range(count)))
    file = tmp_path / "gateway.yaml"
    file.write_text(f"redis: {store_url}\ndata: {tmp_path}/data\nstore: {{timeout: {PATIENCE_S}}}\n")
    yield Command(file, tmp_path / "archive")


async def test_all_accounts_are_archived_and_listed(command: Command) -> None:
    assert (await command.archive("--all")).splitlines() == [
        f"alice: 3 lines moved to {command.folder}/alice.jsonl",
        f"bob: 1 line moved to {command.folder}/bob.jsonl",
    ]
    assert await command.archive("--all") == ""
    assert command.texts() == {"alice": 3, "bob": 1}


async def test_one_account_may_be_named(command: Command) -> None:
    printed = json.loads(await command.archive("bob", "--json"))
    assert printed == {"account": "bob", "file": f"{command.folder}/bob.jsonl", "lines": 1, "error": ""}
    assert command.texts() == {"bob": 1}
    assert "there is no account `nobody`" in await command.archive("nobody", code=3)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["account", "archive", "--all", "--to", "x", "--before", "1d"], "at least 1450 minutes ago"),
        (["account", "archive", "--all", "--to", "x", "--before", "soon"], "is not a time"),
        (["account", "archive", "--all", "--before", "90d"], "--to"),
        (["account", "archive", "--before", "90d", "--to", "x"], "give the id of one account, or --all"),
        (["account", "archive", "alice", "--all", "--before", "90d", "--to", "x"], "give the id of one account"),
    ],
    ids=str,
)
async def test_wrong_usage_is_an_error_and_moves_nothing(command: Command, arguments: list[str], words: str) -> None:
    assert words in " ".join((await command.run(*arguments, code=2)).replace("│", "").split())
    assert (await command.verified())["unread"] == 0


async def test_a_damaged_file_does_not_stop_the_other_accounts(command: Command) -> None:
    command.folder.mkdir()
    (command.folder / "alice.jsonl").write_text("{}\n")
    out = await command.archive("--all", code=1)
    assert "alice.jsonl: what follows byte 0 is not in the ledger" in out
    assert f"bob: 1 line moved to {command.folder}/bob.jsonl" in out
    assert "1 ledgers were not archived completely" in out


async def test_verify_takes_the_sums_or_reads_the_files(command: Command) -> None:
    await command.archive("--all")
    report = await command.verified()
    assert (report["accounts"], report["lines"], report["unread"], report["wrong"]) == (3, 0, 4, [])
    assert "note: 4 archived ledger lines were taken as their sums" in await command.run("verify")
    folder = ("--archive", str(command.folder))
    report = await command.verified(*folder)
    assert (report["accounts"], report["lines"], report["unread"], report["wrong"]) == (3, 4, 0, [])
    file = command.folder / "alice.jsonl"
    file.write_text(file.read_text().replace('"amount":-1', '"amount":-2', 1))
    (finding,) = (await command.verified(*folder, code=1))["wrong"]
    assert finding["account"] == "alice"
    assert "alice.jsonl has 3 archived lines" in finding["what"]


@pytest.mark.parametrize("page", [1, 3])
async def test_killed_before_it_trims_it_continues_from_there(command: Command, client: Client, page: int) -> None:
    past = wallet_of_then(client, OLD_S)
    await asyncio.gather(*(past.settle("alice", new_request_id(OLD_S), 1) for _ in range(2000)))
    arguments = ("account", "archive", "alice", "--before", "90d", "--to", str(command.folder))
    process = await asyncio.create_subprocess_exec(
        *(FORKED, "-m", "gateway", *arguments, "--config", str(command.file)),
        env=os.environ | {"GATEWAY_CRASH_AT": f"archive.written:{page}"},
    )
    assert await asyncio.wait_for(process.wait(), PATIENCE_S) == EXIT_CODE
    folder = ("--archive", str(command.folder))
    report = await command.verified(*folder)
    assert (report["wrong"], report["lines"]) == ([], 2004)
    assert command.texts() == {"alice": min(1000 * page, 2003)}
    assert f"alice: {2003 - 1000 * (page - 1)} lines moved" in await command.archive("alice")
    assert command.texts() == {"alice": 2003}
    assert (await command.verified(*folder))["wrong"] == []
