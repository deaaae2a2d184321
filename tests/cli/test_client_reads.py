"""Commands that read the usage log and channels print the same, and end with the same code, at the store and over the API."""

from __future__ import annotations

import asyncio
import re
import shlex
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest
from typer.testing import CliRunner

from gateway.admin.actions.action import Actor
from gateway.admin.actions.local import LocalClient
from gateway.admin.actions.management_tokens import ManagementTokens
from gateway.admin.http.app import Admin, Callers
from gateway.admin.http.port import serving
from gateway.base.ids import utc
from gateway.chain.services import Store
from gateway.cli.commands import program
from gateway.config.schema import load
from gateway.domain.exchange import Outcome
from gateway.metrics.exporter import Exporter
from gateway.store.channels import ChannelReport
from gateway.store.client.client import Client
from gateway.store.pepper import VARIABLE
from gateway.usage.database import path_of
from tests.patience import PATIENCE_S
from tests.records import COSTED, arrival, end, id_at, usage_database
from tests.whole.scripted import Scripted

TOKEN: Final = "an-admin-token-of-31-characters"
DAY_MS: Final = 86_400_000
STREAM: Final = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 17\r\n\r\nevent: ping\ndata:"
CONFIG: Final = """\
redis: {url}
data: {folder}
store: {{timeout: {timeout}}}
channels:
  one: {{base_url: "{upstream}", api_keys: [canary-4711, canary-4712], headers: {{X-Title: canary-title}}}}
  two: {{base_url: "http://127.0.0.1:9/v1"}}
models: {{words: {{free: true, channels: [{{use: one, model: there}}]}}}}
groups: {{default: {{}}}}
"""
COMMANDS: Final = """
usage list
usage list --json
usage list --csv --limit 7
usage list --limit 1
usage list --limit 2500 --csv
usage list --account alice --outcome caller_gone
usage list --account ext:a@example.com --limit 3
usage list --account ext:nobody
usage list --model other --from 2d
usage list --from 1h --to 2h
usage list --from yesterday
usage list --from {day} --to {day}
usage list --outcome tired
usage show REQUEST
usage show REQUEST --json
usage show OPEN --json
usage show NOWHERE
usage show NOWHERE --json
usage show wrong
trace REQUEST
trace REQUEST --json
trace OPEN
trace NOWHERE
trace NOWHERE --json
usage summary
usage summary --json --by account,model
usage summary --csv --by token,error,outcome
usage summary --by month,channel --from {day} --to {day}
usage summary --by hour --from 2d --account alice --json
usage summary --by planet
usage summary --account ext:a@example.com --outcome completed
usage summary --from 2001-01 --to 2001-02
channels
channels --json
channels disable one --reason "invoice unpaid"
channels
channels --json
channels disable three
channels enable one
channels credential one 1 off
channels credential one 1 try
channels credential one 3 on
channels credential two 1 on
channels --json
channels credential one 1 on
channels test one
channels test one --json --credential 2
channels test one --credential 3
channels test one --model none
channels test two
channels test three
channels
"""
Printed = tuple[int, str, str]


def plain(text: str) -> str:
    """Return what was printed without what is another one each time, and without who did it: a command, or the admin token."""
    text = re.sub(rf"admin\.token|[a-z_]+@{re.escape(socket.gethostname())}", "WHO", text)
    text = re.sub(r"(?<=\S) {2,}", "  ", text)
    text = re.sub(r"[0-9]+ s ago|for [0-9]+ s\b", "SECONDS", text)
    text = re.sub(r'("cool_ms":|"took_ms":|"at_ms":)[0-9]+', r"\1NUMBER", text)
    text = re.sub(r"after [0-9]+ ms for", "after MS for", text)
    return re.sub(r"20[0-9]{2}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}Z", "TIME", text)


async def printed(names: dict[str, str]) -> dict[str, Printed]:
    """Run all commands, and return what each printed. `names`: what stands for the ids of requests."""
    found: dict[str, Printed] = {}
    day = utc(round(time.time() * 1000) - DAY_MS)[:10]
    for number, line in enumerate(COMMANDS.strip().format(day=day).splitlines()):
        words = [names.get(word, word) for word in shlex.split(line)]
        result = await asyncio.to_thread(CliRunner().invoke, program(), words)
        assert "canary" not in result.output
        found[f"{number}: {line}"] = result.exit_code, plain(result.stdout), plain(result.stderr)
    return found


@pytest.fixture
async def address(
    tmp_path: Path, store_url: str, client: Client, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[str]:
    """The address of an API for the same store as that of the configuration."""
    monkeypatch.setenv(VARIABLE, "p" * 40)
    file = tmp_path / "gateway.yaml"
    monkeypatch.setenv("GATEWAY_CONFIG", str(file))
    async with Scripted([STREAM]) as upstream:
        base_url = upstream.base_url
        file.write_text(CONFIG.format(url=store_url, folder=tmp_path, timeout=PATIENCE_S, upstream=base_url))
        loaded = load(file)
        async with Store.open(loaded.config, store_url) as store:
            await store.accounts.create("alice", "default", 0, external_id="a@example.com")

            def client_of(actor: Actor, key: str) -> LocalClient:
                return LocalClient(loaded, store, actor, key)

            tokens = ManagementTokens(store.client)
            admin = Admin(Callers(lambda: TOKEN, tokens), Exporter({}), client_of)
            async with serving(admin, "127.0.0.1:0") as port:
                yield f"http://127.0.0.1:{port}"


async def test_all_commands_that_read_print_the_same_both_ways(
    address: str, tmp_path: Path, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ms = round(time.time() * 1000)
    requests = [
        end(
            arrival(id_at(now_ms - number * DAY_MS // 500)),
            **COSTED if number % 3 else {},
            account="alice" if number % 2 else "bob",
            token_id=f"{'alice' if number % 2 else 'bob'}-k3f9x2ab",
            model="other" if number % 7 == 0 else "words",
            requested_model="=evil()" if number % 11 == 0 else "",
            outcome=Outcome.CALLER_GONE if number % 5 == 0 else Outcome.COMPLETED,
        )
        for number in range(2100)
    ]
    database = usage_database(tmp_path / "usage")
    database.write([*requests, opened := arrival(id_at(now_ms + 1))])
    database.close()
    path_of(tmp_path / "usage", "2001-01").write_bytes(b"no database" * 500)
    report = ChannelReport(
        failed=3, error="upstream_timeout", cool_ms=600_000
    )  # calls in flight are forgotten after seconds
    async with Store.open(load(tmp_path / "gateway.yaml").config, store_url) as store:
        await store.channels.sync("w", {"two": report})
    names = {"REQUEST": requests[3].id, "OPEN": opened.id, "NOWHERE": id_at(now_ms - 50)}
    here = await printed(names)
    assert {code for code, _, _ in here.values()} == {0, 1, 2, 3}
    assert [line for line, (_, out, err) in here.items() if not out + err] == []
    monkeypatch.setenv("GATEWAY_API", address)
    monkeypatch.setenv("GATEWAY_API_TOKEN", TOKEN)
    monkeypatch.setenv("GATEWAY_CONFIG", str(tmp_path / "none.yaml"))
    there = await printed(names)
    for line, expected in here.items():
        assert there[line] == expected, line
