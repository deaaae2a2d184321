"""Commands print the same, and end with the same code, at the store and over the API of a gateway elsewhere."""

from __future__ import annotations

import asyncio
import re
import shlex
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
from gateway.chain.services import Store
from gateway.cli.commands import program
from gateway.config.schema import load
from gateway.metrics.exporter import Exporter
from gateway.store.client.client import Client
from gateway.store.pepper import VARIABLE
from tests.patience import PATIENCE_S

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
token create alice --name laptop --expires 2027-01-31 --models small,large --budget day=1 --addresses 10.0.0.0/8 --concurrent 3
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


@pytest.fixture
async def address(
    tmp_path: Path, store_url: str, client: Client, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[str]:
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
    async with Store.open(loaded.config, store_url) as store:

        def client_of(actor: Actor, key: str) -> LocalClient:
            return LocalClient(loaded, store, actor, key)

        admin = Admin(Callers(lambda: TOKEN, ManagementTokens(store.client)), Exporter({}), client_of)
        async with serving(admin, "127.0.0.1:0") as port:
            yield f"http://127.0.0.1:{port}"


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
