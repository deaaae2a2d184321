"""Commands print the same, and end with the same code, at the store and over the API of a gateway elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
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
from gateway.config.schema import Loaded, load
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
CONFIG: Final = """\
redis: {url}
data: {folder}
time_zone: America/New_York
store: {{timeout: {timeout}}}
channels: {{east: {{base_url: "http://127.0.0.1:1/v1"}}}}
models: {{small: {{input: 1, output: 1, max_output_tokens: 9, channels: [east]}}}}
groups: {{default: {{}}, trial: {{budgets: {{month: 5, requests: 9}}, models: [small]}}}}
"""
Printed = tuple[int, str, str]

COMMANDS: Final = """
account list
account create Alice
account create alice --group nowhere
account create alice --credit 5.00 --budget day=1 --budget requests=3 --external-id a@example.com --json
account create alice
account create robert --external-id a@example.com
account create robert --group trial --external-id ü/?#%41
account show alice
account show ext:a@example.com --json
account show ext:ü/?#%41
account show ext:nobody
account show ext:
account show nobody
account show nobody --json
account show a/b?c
account credit alice 2.50 --transaction invoice-1
account credit alice 2.50 --transaction invoice-1
account credit alice 9 --transaction invoice-1
account credit nobody 9 --transaction invoice-1
account credit alice -- -1 --transaction invoice-2
account adjust ext:a@example.com -0.50 --transaction fix-1 --reason "twice, by hand" --json
account set alice --models small,gpt-* --credit-line 1.00 --budget day=none --budget week=2 --concurrent 4
account set alice --group trial --models ""
account set robert --external-id a@example.com
account set robert --external-id "" --requests-per-minute 7 --json
account set nobody --group trial
account suspend alice
account show alice --json
account resume alice
account close robert --yes
account close robert --yes --json
account resume robert
account list
account list --json
account ledger alice
account ledger alice --limit 1
account ledger alice --limit 2 --json
account ledger alice --csv
account ledger nobody
account import {folder}/accounts.csv
account import {folder}/accounts.csv --json
account credit --from {folder}/payments.csv --json
account import {folder}/nothing.csv
token list
token list alice
token list nobody
token create nobody
token create robert
token create alice --name laptop --expires 2999-01-31 --models small,large --budget day=1 --addresses 10.0.0.0/8 --concurrent 3
token create alice --json --addresses nowhere
token create alice --json
token list alice
token list --json
token set TOKEN --name other --expires none --models "" --budget total=3 --budget day=none
token set alice-00000000 --name other
token disable TOKEN
token enable TOKEN --json
token rotate TOKEN --overlap 24h
token rotate TOKEN --overlap 0
token list ext:a@example.com --json
token delete TOKEN --yes
token delete TOKEN --yes --json
token disable TOKEN
"""


def plain(text: str) -> str:
    """Return what was printed without what is another one each time: tokens, their ids, times."""
    text = re.sub(r"sk-(\w+)-[a-z0-9]{8}-[0-9A-Za-z]{28}", r"sk-\1-TEXT", text)
    text = re.sub(r"\b([a-z]{5,6})-(?!00000000)[a-z0-9]{8}\b", r"\1-TOKEN", text)
    text = re.sub(r'"id":"[0-9]+-[0-9]+"|^[0-9]{13}-[0-9]+', "LINE", text, flags=re.MULTILINE)
    return re.sub(r"20[0-9]{2}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}(:[0-9]{2})?(\.[0-9]+)?", "TIME", text)


async def printed(folder: Path) -> dict[str, Printed]:
    """Run all commands, and return what each printed."""
    found: dict[str, Printed] = {}
    token = ""
    for number, line in enumerate(COMMANDS.strip().format(folder=folder).splitlines()):
        words = [token if word == "TOKEN" else word for word in shlex.split(line)]
        result = await asyncio.to_thread(CliRunner().invoke, program(), words)
        code, out, err = result.exit_code, result.stdout, result.stderr
        made = re.search(r"^id +(alice-[a-z0-9]{8})$", out, re.MULTILINE) if line.startswith("token create") else None
        token = made[1] if made else token
        lines = plain(out).splitlines()
        if line.startswith("token list"):  # those of one second are in the order of their ids, which are random
            lines.sort()
        found[f"{number}: {line}"] = code, "\n".join(lines), plain(err)
    return found


@contextlib.asynccontextmanager
async def api(loaded: Loaded, store: Store) -> AsyncIterator[str]:
    """Serve the API for a store, and yield its address."""

    def client_of(actor: Actor, key: str) -> LocalClient:
        return LocalClient(loaded, store, actor, key)

    admin = Admin(Callers(lambda: TOKEN, ManagementTokens(store.client)), Exporter({}), client_of)
    async with serving(admin.application(), "127.0.0.1:0") as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
async def address(tmp_path: Path, store_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    """The address of an API for the same store as that of the configuration."""
    monkeypatch.setenv(VARIABLE, "p" * 40)
    file = tmp_path / "gateway.yaml"
    file.write_text(CONFIG.format(url=store_url, folder=tmp_path, timeout=PATIENCE_S))
    (tmp_path / "accounts.csv").write_text(
        "id,group,amount,external_id\nalice,,1,\ncarol,trial,2,c\nB,,1,\ndave,nowhere,1,\nerin,,-1,\n"
    )
    (tmp_path / "payments.csv").write_text(
        "id,external_id,amount,transaction\ncarol,,1,t1\n,c,1,t2\next:c,,1,t3\n,nobody,1,t4\ncarol,,2,t1\n"
    )
    monkeypatch.setenv("GATEWAY_CONFIG", str(file))
    loaded = load(file)
    async with Store.open(loaded.config, store_url) as store, api(loaded, store) as address:
        yield address


async def test_all_commands_on_accounts_and_tokens_print_the_same_both_ways(
    address: str, tmp_path: Path, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = await printed(tmp_path)
    assert [line for line, (code, out, err) in here.items() if code not in (0, 1, 2, 3, 4, 5) or not out + err] == []
    assert {code for code, _, _ in here.values()} == {0, 1, 2, 3, 4, 5}
    await client.call("FLUSHALL")
    monkeypatch.setenv("GATEWAY_API", address)
    monkeypatch.setenv("GATEWAY_API_TOKEN", TOKEN)
    monkeypatch.setenv("GATEWAY_CONFIG", str(tmp_path / "none.yaml"))
    assert await printed(tmp_path) == here


async def test_what_cannot_be_reached_or_is_not_allowed_is_told_and_never_done_at_the_store(
    address: str, tmp_path: Path, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def told(*words: str) -> tuple[int, str]:
        result = await asyncio.to_thread(CliRunner().invoke, program(), words)
        return result.exit_code, result.stderr + result.stdout

    create = ("account", "create", "alice")
    for wrong in ("", "10.0.0.5:9090", "http://user@host"):
        code, said = await told(*create, "--api", wrong)
        assert (code, "--api: give the address" in said) == (2, True)
    monkeypatch.delenv("GATEWAY_API_TOKEN", raising=False)
    code, said = await told(*create, "--api", address)
    assert (code, "in $GATEWAY_API_TOKEN" in said) == (2, True)
    monkeypatch.setenv("GATEWAY_API_TOKEN", "wrong-one")
    code, said = await told(*create, "--api", address)
    assert (code, "does not accept the token" in said, "wrong-one" in said) == (2, True, False)
    monkeypatch.setenv("GATEWAY_API_TOKEN", TOKEN)
    code, said = await told(*create, "--api", address, "--config", str(tmp_path / "gateway.yaml"))
    assert (code, "give one of them" in said) == (2, True)
    code, said = await told(*create, "--api", "http://127.0.0.1:1")
    assert (code, "does not answer" in said) == (6, True)
    assert await client.call("HLEN", "gw:{alice}") == await client.call("EXISTS", "gw:{alice}:wallet") == 0
    assert "There are no accounts" in (await told("account", "list"))[1]

    code, said = await told("management-tokens", "create", "shop", "--scopes", "read", "--api", address)
    assert code == 0
    assert "shop" in (await told("management-tokens", "list", "--api", address))[1]
    code, listed = await told("audit", "list", "--api", address)
    assert (code, "admin.token" in listed, "management_tokens.create" in listed) == (0, True, True)
    monkeypatch.setenv("GATEWAY_API_TOKEN", said.split()[-1])
    assert (await told("account", "list", "--api", address))[0] == 0
    code, said = await told(*create, "--api", address)
    assert (code, "needs the scope `accounts`" in said) == (1, True)
    monkeypatch.setenv("GATEWAY_API_TOKEN", TOKEN)
    said = (await told("management-tokens", "create", "maker", "--scopes", "accounts", "--api", address))[1]
    monkeypatch.setenv("GATEWAY_API_TOKEN", said.split()[-1])
    code, said = await told(*create, "--api", address)  # who may not read the time zone gets times in UTC
    assert (code, re.findall(r"created .*Z", said) != []) == (0, True), said


DAY_MS: Final = 86_400_000
STREAM: Final = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 17\r\n\r\nevent: ping\ndata:"
CONFIG_OF_READS: Final = """\
redis: {url}
data: {folder}
store: {{timeout: {timeout}}}
channels:
  one: {{base_url: "{upstream}", api_keys: [canary-4711, canary-4712], headers: {{X-Title: canary-title}}}}
  two: {{base_url: "http://127.0.0.1:9/v1"}}
models: {{words: {{free: true, channels: [{{use: one, model: there}}]}}}}
groups: {{default: {{}}}}
"""
READS: Final = """
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


def plain_reads(text: str) -> str:
    """Return what was printed without what is another one each time, and without who did it: a command, or the admin token."""
    text = re.sub(rf"admin\.token|[a-z_]+@{re.escape(socket.gethostname())}", "WHO", text)
    text = re.sub(r"(?<=\S) {2,}", "  ", text)
    text = re.sub(r"[0-9]+ s ago|for [0-9]+ s\b", "SECONDS", text)
    text = re.sub(r'("cool_ms":|"took_ms":|"at_ms":)[0-9]+', r"\1NUMBER", text)
    text = re.sub(r"after [0-9]+ ms for", "after MS for", text)
    return re.sub(r"20[0-9]{2}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}Z", "TIME", text)


async def printed_reads(names: dict[str, str]) -> dict[str, Printed]:
    """Run all commands, and return what each printed. `names`: what stands for the ids of requests."""
    found: dict[str, Printed] = {}
    day = utc(round(time.time() * 1000) - DAY_MS)[:10]
    for number, line in enumerate(READS.strip().format(day=day).splitlines()):
        words = [names.get(word, word) for word in shlex.split(line)]
        result = await asyncio.to_thread(CliRunner().invoke, program(), words)
        assert "canary" not in result.output
        found[f"{number}: {line}"] = (result.exit_code, plain_reads(result.stdout), plain_reads(result.stderr))
    return found


@pytest.fixture
async def address_for_reads(tmp_path: Path, store_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    """The address of an API for the same store as that of the configuration."""
    monkeypatch.setenv(VARIABLE, "p" * 40)
    file = tmp_path / "gateway.yaml"
    monkeypatch.setenv("GATEWAY_CONFIG", str(file))
    async with Scripted([STREAM]) as upstream:
        base_url = upstream.base_url
        file.write_text(CONFIG_OF_READS.format(url=store_url, folder=tmp_path, timeout=PATIENCE_S, upstream=base_url))
        loaded = load(file)
        async with Store.open(loaded.config, store_url) as store:
            await store.accounts.create("alice", "default", 0, external_id="a@example.com")
            async with api(loaded, store) as address:
                yield address


async def test_all_commands_that_read_print_the_same_both_ways(
    address_for_reads: str, tmp_path: Path, store_url: str, monkeypatch: pytest.MonkeyPatch
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
    here = await printed_reads(names)
    assert {code for code, _, _ in here.values()} == {0, 1, 2, 3}
    assert [line for line, (_, out, err) in here.items() if not out + err] == []
    monkeypatch.setenv("GATEWAY_API", address_for_reads)
    monkeypatch.setenv("GATEWAY_API_TOKEN", TOKEN)
    monkeypatch.setenv("GATEWAY_CONFIG", str(tmp_path / "none.yaml"))
    there = await printed_reads(names)
    for name in ("GATEWAY_API", "GATEWAY_API_TOKEN"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("GATEWAY_CONFIG", str(tmp_path / "gateway.yaml"))
    # A window by the clock that moved on between two readings stands in one of them as the API had it.
    later = {} if there == here else await printed_reads(names)
    for line, expected in here.items():
        assert there[line] in (expected, later.get(line)), line
