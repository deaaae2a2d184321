"""Commands that the documents show are run as they stand there, at a store; the store of compose.yaml ends when it is asked to."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

import msgspec
import pytest
import yaml

from gateway.fake_upstream import FakeUpstream
from gateway.store.client.client import Client
from gateway.store.embedded import EmbeddedStore, find_server
from tests.cli.processes import children, demo_in, free_port, gateway, serving
from tests.forked import FORKED
from tests.patience import PATIENCE_S, wait_until
from tests.test_docs import blocks
from tests.whole.api import admin_token, api_of
from tests.whole.raw import ask, chat
from tests.whole.test_one_log import Pod, nginx

PAGE: Final = "gateway/docs/recipes.md"
SECRETS: Final = {"VALKEY_PASSWORD": "v", "DATABASE_PASSWORD": "d", "OPENAI_API_KEY": "key"}


def recipe(name: str, language: str, mark: str = "#") -> str:
    """Return the block of a language that begins with a name."""
    (found,) = [block for block in blocks(PAGE, language) if block.startswith(f"{mark} {name}\n")]
    return found


def file_of(folder: Path, name: str) -> Path:
    """Write the README's file with what a recipe adds to it, or has in place of its parts."""
    (whole,) = blocks("README.md", "yaml")
    added = recipe(name, "yaml") if name else ""
    parts = [part for part in re.split(r"(?m)^(?=\w)", whole) if f"\n{part.partition(':')[0]}:" not in f"\n{added}"]
    file = folder / "gateway.yaml"
    port, admin = free_port(), free_port()
    own = f"listen: 127.0.0.1:{port}\nadmin: 127.0.0.1:{admin}\ndata: {folder}/data\n"
    file.write_text("".join(parts) + own + added)
    return file


COMMAND: Final = r"""
gateway() {
  local code connection IFS=$'\x1f'
  exec {connection}<>/dev/tcp/127.0.0.1/$GATEWAYS_PORT
  printf '%s\n' "$*" >&$connection
  read -r code <&$connection
  cat <&$connection
  exec {connection}>&-
  return "$code"
}
"""
"""`gateway` of a shell: the test forks the process, at a tenth of the cost of a start."""


async def run(script: str, file: Path, **more: str) -> str:
    """Run the commands of a recipe in one shell, and return what they print. They are many: only the whole test has a limit."""
    environment = os.environ | SECRETS | {"GATEWAY_CONFIG": str(file)} | more
    said: list[bytes] = []

    async def command(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        words = (await reader.readline()).decode().removesuffix("\n").split("\x1f")
        begun = (FORKED, "-m", "gateway", *words)
        process = await asyncio.create_subprocess_exec(
            *begun, cwd=file.parent, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        printed, errors = await process.communicate()
        said.append(errors)
        writer.write(b"%d\n%b" % (process.returncode or 0, printed))
        writer.close()

    async with await asyncio.start_server(command, "127.0.0.1") as server:
        shell = await asyncio.create_subprocess_exec(
            *("bash", "-c", f"set -eu -o pipefail\n{COMMAND}{script}"),
            cwd=file.parent,
            env=environment | {"GATEWAYS_PORT": str(server.sockets[0].getsockname()[1])},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        printed, errors = await shell.communicate()
    assert shell.returncode == 0, (errors, said)
    return printed.decode()


async def started(file: Path) -> None:
    """Make the data folder and the store."""
    code, _, errors = await gateway("init", "--config", str(file), cwd=file.parent)
    assert code == 0, errors


async def test_five_teams_have_budgets_and_one_has_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "key")
    await started(file := file_of(tmp_path, "teams"))
    await run(recipe("teams", "sh"), file)
    lines = (await run("gateway account list --json", file)).splitlines()
    accounts = {each["id"]: each for each in map(msgspec.json.decode, lines)}
    assert set(accounts) == {"search", "data", "mobile", "shop", "support"}
    limits = {
        id: [use["limit_micros"] for use in each["budget_use"] if use["window"] == "month"]
        for id, each in accounts.items()  # noqa: A001
    }
    assert limits["search"] == [500_000_000]
    assert limits["data"] == [200_000_000]


async def test_a_short_name_has_the_price_and_the_ladder_of_its_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "key")
    await started(file := file_of(tmp_path, "names"))
    printed = await run(recipe("names", "sh"), file)
    assert "gpt-4o-mini" in printed
    assert "gpt-4o:" in printed or "gpt-4o " in printed


@pytest.mark.skipif(shutil.which("jq") is None, reason="the recipe is one of jq")
async def test_a_leaked_token_is_found_replaced_and_traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "key")
    await started(file := file_of(tmp_path, ""))
    made = await run("gateway account create alice > made\ngateway token create alice --json", file)
    leaked = msgspec.json.decode(made)["id"]
    printed = await run(recipe("leak", "sh").replace("alice-3kf9x2a1", leaked), file)
    assert f"token {leaked}: active" in printed
    assert "sk-alice-" in printed
    assert "1.20" in printed
    assert await run(recipe("agents", "sh"), file)


@pytest.mark.skipif(shutil.which("nginx") is None, reason="the recipe is one of nginx")
async def test_of_two_gateways_behind_nginx_one_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, database_url: str
) -> None:
    monkeypatch.setenv("GATEWAY_PEPPER", "a-pepper-of-enough-characters-for-it")
    text = file_of(tmp_path, "both").read_text().partition("listen:")[0] + recipe("both", "yaml")
    store = await asyncio.to_thread(EmbeddedStore.start, tmp_path / "store")
    for recipes, here in (
        ("rediss://:${VALKEY_PASSWORD}@store.internal:6379", store.url),
        ("postgresql://gateway:${DATABASE_PASSWORD}@db.internal:5432/usage", database_url),
        ("10.0.0.2", "127.0.0.1"),
    ):
        assert recipes in text
        text = text.replace(recipes, here)
    text += "listen: 0.0.0.0:8080\nadmin: 0.0.0.0:9090\ndata: /var/lib/sluicegate/data\n"
    async with FakeUpstream(pace_s=0, key="key") as upstream, AsyncExitStack() as stack:
        stack.callback(store.stop)
        given = {"OPENAI_API_KEY": "key"}
        pods = [Pod(tmp_path / name, given, upstream.base_url, text) for name in ("one", "two")]
        for pod in pods:
            await stack.enter_async_context(pod.serving())
        port = await stack.enter_async_context(nginx(tmp_path, pods))
        await pods[0].run("account", "create", "tester", "--credit", "5")
        token = msgspec.json.decode(await pods[0].run("token", "create", "tester", "--json"))["token"]
        asked = chat(token, {"model": "gpt-4o-mini"})
        assert [(await ask(port, asked)).status for _ in range(4)] == [200] * 4
        pods[0].signal(signal.SIGKILL)
        answers = [await ask(port, asked) for _ in range(12)]
        lost = [answer.error["code"] for answer in answers if answer.status != 200]
        assert set(lost) <= {"service_unavailable"} and len(lost) <= 4, (
            "what was sent on a kept connection is not sent again"
        )
        assert all(answer.whole for answer in answers)
        assert len((await pods[1].run("gateways", "list", "--json")).splitlines()) == 2


@pytest.mark.skipif(shutil.which("node") is None, reason="the recipe is one of Node")
async def test_a_shop_in_node_credits_a_customer_once(tmp_path: Path) -> None:
    port = free_port()
    file = demo_in(tmp_path, admin=f"127.0.0.1:{port}")
    (tmp_path / "shop.mjs").write_text(recipe("shop.mjs", "js", "//"))
    async with serving(file), api_of(tmp_path, port) as api:
        await api.call("GET", "/accounts")
        address = {"GATEWAY_API": f"http://127.0.0.1:{port}", "GATEWAY_API_TOKEN": admin_token(tmp_path)}
        for _ in range(2):
            balance, url = (await run("node shop.mjs", file, **address)).split()
            assert (balance, url.startswith(f"http://127.0.0.1:{port}/enter?ticket=")) == ("20000000", True)
        status, found = await api.call("GET", "/accounts/ext:cus_Q1w2E3")
        assert (status, found["balance_micros"]) == (200, 20_000_000)


README = Path(__file__).parent.parent.parent / "deploy" / "store.md"


def commands() -> list[list[str]]:
    """Return what the document sends to the store."""
    return [line.split() for line in re.findall(r"redis-cli -s \S+/store\.sock (.*)", README.read_text())]


@asynccontextmanager
async def stored(data: Path) -> AsyncIterator[Client]:
    store = EmbeddedStore.start(data)
    client = Client.connect(store.url, timeout_s=PATIENCE_S, connections=1)
    try:
        yield client
    finally:
        await client.close()
        store.stop()


async def test_the_commands_of_the_document_let_the_store_write_what_older_servers_read(tmp_path: Path) -> None:
    *changes, status = commands()
    before, after = (tmp_path / name / "appendonlydir" for name in ("before", "after"))
    async with stored(before.parent) as client, asyncio.timeout(PATIENCE_S):
        await client.call("SET", "balance", "500")
        for command in changes:
            await client.call(*command)
        while not list(before.glob("*.base.aof")) or (await client.call(*status))["aof_rewrite_in_progress"]:
            await asyncio.sleep(0.02)
        await client.call("SET", "later", "7")
    assert not list(before.glob("*.rdb")), "older servers refuse its version"
    for file in before.glob("*.aof"):
        assert file.read_bytes().startswith(b"*"), f"{file.name} holds no plain commands"
    shutil.copytree(before, after)
    async with stored(after.parent) as client:
        assert [await client.call("GET", key) for key in ("balance", "later")] == [b"500", b"7"]


COMPOSE = Path(__file__).parent.parent.parent / "deploy" / "compose.yaml"


def namespaces_allowed() -> bool:
    program = shutil.which("unshare")
    return program is not None and subprocess.run([program, "-pf", "true"], capture_output=True).returncode == 0


def shell_command(folder: Path) -> list[str]:
    """Return the service's command, as compose passes it on, with its data in `folder` and no TCP port."""
    shell, option, script = yaml.safe_load(COMPOSE.read_text())["services"]["valkey"]["command"]
    assert "dir /data" in script
    script = script.replace("$$", "$").replace("dir /data", f"dir {folder}\nport 0\nunixsocket {folder}/store.sock")
    return [shell, option, script]


@pytest.mark.skipif(not namespaces_allowed(), reason="no PID namespace may be made here")
async def test_the_store_ends_at_sigterm_as_the_first_process(tmp_path: Path) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "valkey-server").symlink_to(find_server())
    environment = {"PATH": f"{programs}:{os.environ['PATH']}", "VALKEY_PASSWORD": "letters123"}
    process = await asyncio.create_subprocess_exec(
        "unshare", "-pf", "--kill-child", *shell_command(tmp_path), env=environment, stdout=subprocess.DEVNULL
    )
    try:
        await wait_until((tmp_path / "store.sock").exists)
        (first,) = children(process.pid)
        assert "letters123" not in children(process.pid)[first]
        os.kill(first, signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), PATIENCE_S) == 0
        assert (tmp_path / "appendonlydir").is_dir()
    finally:
        if process.returncode is None:
            process.kill()
