"""`gateway gateways` shows the gateways of the store, and forgets only one that is away."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from pathlib import Path

from typer.testing import CliRunner

from gateway.cli.commands import program
from gateway.config.document import shipped
from gateway.store.client.client import Client
from gateway.usage.database import UsageFiles
from tests.cli.processes import gateway
from tests.cli.test_verify import Books, away, books
from tests.postgres import PostgresServer
from tests.records import arrival
from tests.usage.test_shares import Machine

__all__ = ["books"]

AWAY = "0" * 32


async def said(books: Books, *command: str, code: int = 0) -> str:
    result = await asyncio.to_thread(CliRunner().invoke, program(), [*command, "--config", str(books.file)])
    assert result.exit_code == code, result.output
    return result.output


async def test_gateways_are_listed_and_one_that_has_gone_is_forgotten(books: Books) -> None:
    assert "No gateway of the store has run yet" in await said(books, "gateways", "list")
    await Machine(books.store.client, UsageFiles(books.store.usage.folder)).drain()
    await away(books.store.client, AWAY, heard_s_ago=3600)
    lines = [json.loads(line) for line in (await said(books, "gateways", "list", "--json")).splitlines()]
    assert {(line["name"], line["state"]) for line in lines} == {
        (books.store.usage.gateway, "present, this one"),
        ("00000000", "away"),
    }
    table = await said(books, "gateways", "list")
    assert "other-host" in table
    id_ = arrival().id
    output = await said(books, "trace", id_, code=3)
    assert "not found, but it may have arrived: not every gateway of the store could be asked:" in output
    assert "- gateway other-host (00000000) was last heard of at " in output
    assert "gateway other-host" in json.loads(await said(books, "trace", id_, "--json", code=3))["unasked"][0]
    assert "gateway other-host" in await said(books, "usage", "show", id_, code=3)
    text = await said(books, "gateways", "forget", "other-host", "--yes")
    assert text.startswith("forgot gateway other-host (00000000), last heard of at ")
    assert "forgotten at" in await said(books, "gateways", "list")
    assert "and forgotten at" in await said(books, "trace", id_, code=3)
    later = await said(books, "trace", arrival().id, code=3)
    assert "never arrived" in later


async def test_a_gateway_that_runs_or_is_not_there_is_not_forgotten(books: Books) -> None:
    await Machine(books.store.client, UsageFiles(books.store.usage.folder)).drain()
    name = books.store.usage.gateway
    assert f"({name}) runs: it was heard of at" in await said(books, "gateways", "forget", name, "--yes", code=1)
    assert "there is no gateway `x`: see `gateway gateways list`" in await said(
        books, "gateways", "forget", "x", "-y", code=3
    )


async def test_one_of_several_gateways_of_a_host_is_chosen_by_its_name(books: Books) -> None:
    for port, installation in enumerate((AWAY, "1" * 32)):
        await away(books.store.client, installation, heard_s_ago=3600, listen=f"127.0.0.1:{port}")
    books.file.write_text(f"{books.file.read_text()}\ntime_zone: Asia/Tokyo\n")
    lines = (await said(books, "gateways", "list")).splitlines()
    assert [line.count("+09:00") for line in lines] == [0, 1, 1]
    assert [line.split()[:3] for line in lines[1:]] == [
        ["00000000", "other-host", "127.0.0.1:0"],
        ["11111111", "other-host", "127.0.0.1:1"],
    ]
    output = await said(books, "gateways", "forget", "other-host", "--yes", code=1)
    assert "several gateways are called `other-host`: give one of 00000000, 11111111" in output
    assert "forgot" in await said(books, "gateways", "forget", "11111111", "--yes")


async def test_a_second_gateway_with_files_of_its_own_does_not_start(
    client: Client, store_url: str, database_url: str, tmp_path: Path
) -> None:
    first = Machine(client, UsageFiles(tmp_path / "one" / "usage"))
    await first.drain()
    file = tmp_path / "gateway.yaml"

    async def started(more: str = "") -> str:
        shown = re.sub("(?m)^(listen|admin|redis|data):.*$", "", shipped("demo.yaml").read_text())
        file.write_text(f"{shown}\nredis: {store_url}\ndata: {tmp_path}/two\n{more}")
        code, _, said = await gateway("serve", "--config", str(file), cwd=tmp_path)
        assert code == 1
        return said

    text = await started()
    assert f"is in the SQLite files of gateway {socket.gethostname()} ({first.usage.gateway})" in text
    assert "gateway usage move" in text
    text = await started(f"usage: {{database: '{database_url}'}}\n")
    assert "is still to be copied: run `gateway usage move` there, after its stop" in text
    assert PostgresServer.password not in text
