"""No eight characters of any secret are in a file, a log line, a record, a key of the store or a response."""

from __future__ import annotations

import asyncio
import secrets
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from aiohttp import ClientSession

from gateway.chain.services import Store
from gateway.config.schema import Config, load
from gateway.fake_upstream import FakeUpstream
from gateway.store.client.client import Client
from gateway.store.embedded import EmbeddedStore
from gateway.store.pepper import make_pepper
from tests.cli.processes import free_port, gateway
from tests.forked import FORKED
from tests.patience import PATIENCE_S
from tests.whole.conftest import CHAIN, configuration
from tests.whole.raw import ask, chat
from tests.whole.test_usage_log import contents, every_use

OWN_FILES = ("pepper", "admin.token", "alerts.secret")
"""The files that contain a secret by design."""

READ = {
    b"string": ("GET",),
    b"hash": ("HGETALL",),
    b"zset": ("ZRANGE", 0, -1, "WITHSCORES"),
    b"set": ("SMEMBERS",),
    b"list": ("LRANGE", 0, -1),
    b"stream": ("XRANGE", "-", "+"),
}


def pieces_in(secret: str, haystack: bytes) -> list[str]:
    """Return the pieces of eight characters of a secret that are in `haystack`."""
    windows = [secret[at : at + 8] for at in range(len(secret) - 7)]
    assert len(windows) > 12
    return [window for window in windows if window.encode() in haystack]


async def keyspace(client: Client) -> bytes:
    """Return every key of the store with its contents."""
    stored: list[object] = []
    cursor = b"0"
    while True:
        cursor, keys = await client.call("SCAN", cursor, "COUNT", 1000)
        for key in keys:
            command, *arguments = READ[await client.call("TYPE", key)]
            stored += [key, await client.call(command, key, *arguments)]
        if int(cursor) == 0:
            return repr(stored).encode()


SERVED = (b" is served after ", b"admin_port_served")
"""What the program says of its two ports."""


@asynccontextmanager
async def serving(file: Path, log: Path) -> AsyncIterator[None]:
    """Run `gateway serve` with all its output in `log`."""
    with log.open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            *(FORKED, "-m", "gateway", "serve", "--config", str(file)),
            stdout=output,
            stderr=output,
        )
    try:
        async with asyncio.timeout(PATIENCE_S):
            said = b""
            while not all(served in said for served in SERVED):
                await asyncio.sleep(0.02)
                said = await asyncio.to_thread(log.read_bytes)
        yield
    finally:
        process.terminate()
        assert await asyncio.wait_for(process.wait(), 30) == 0


async def new_token(config: Config) -> str:
    """Create an account and return its token."""
    embedded = await asyncio.to_thread(EmbeddedStore.start, config.data_path)
    make_pepper(config.data_path)
    async with Store.open(config, embedded.url) as store:
        await store.accounts.create("tester")
        await store.wallet.credit("tester", "opening", 5_000_000)
        token = (await store.tokens.create("tester")).token
    await asyncio.to_thread(embedded.stop)
    return token


async def sent_to_a_caller(port: int, requests: Sequence[bytes]) -> bytes:
    answers = []
    for request in requests:
        with suppress(asyncio.IncompleteReadError):
            answer = await ask(port, request)
            answers.append(repr(answer.headers).encode() + answer.body)
    return b"".join(answers)


async def sent_by_the_admin_port(port: int, token: str) -> bytes:
    """Send a caller's token to the admin port in several places, and return the responses."""
    output = []
    async with ClientSession(f"http://127.0.0.1:{port}") as client:
        for path in (
            "/healthz",
            "/api/v1/usage/summary",
            f"/api/v1/usage/summary?by={token}",
            f"/api/v1/usage/live?token={token}",
        ):
            for headers in ({"Authorization": f"Bearer {token}"}, {"X-Api-Key": token, "Last-Event-ID": token}):
                async with client.get(path, headers=headers) as answer:
                    output.append(repr(answer.headers).encode() + await answer.read())
    return b"".join(output)


async def printed_by(command: Sequence[str], file: Path) -> bytes:
    code, out, err = await gateway(*command, "--config", str(file), cwd=file.parent)
    assert code == 0, err
    return out.encode() + err.encode()


@pytest.mark.skipif(sys.platform != "linux", reason="needs the whole program")
async def test_no_piece_of_a_secret_is_stored_logged_or_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent.parent.parent))
    for variable in ("GATEWAY_PEPPER", "GATEWAY_ADMIN_TOKEN", "GATEWAY_ALERTS_SECRET"):
        monkeypatch.delenv(variable, raising=False)
    credential, hook = secrets.token_urlsafe(40), secrets.token_urlsafe(40)
    port, admin, data, log = free_port(), free_port(), tmp_path / "data", tmp_path / "serve.log"
    async with FakeUpstream(pace_s=0, key=credential) as upstream:
        file = tmp_path / "gateway.yaml"
        more = f"listen: 127.0.0.1:{port}\nadmin: 127.0.0.1:{admin}\ndata: {data}\n"
        more += f"alerts: {{webhook: 'http://127.0.0.1:{free_port()}/{hook}', low_balance: 1000}}"
        chain = CHAIN + "  - use: tests.whole.broken:Fragile\n"
        yaml = configuration(upstream.base_url, chain=chain, more=more)
        file.write_text(yaml.replace("channel-credential-4711", '"${CREDENTIAL}"'))
        monkeypatch.setenv("CREDENTIAL", credential)
        config = load(file).config
        token = await new_token(config)
        async with serving(file, log):
            wrong = f"{token[:-4]}AAAA"
            uses = [*every_use(token), *every_use(wrong), chat(token, headers={"x-break": token})]
            output = await sent_to_a_caller(port, uses)
            for upstream.mode in ("401", "404", "echo-key", "first-error"):
                output += await sent_to_a_caller(port, [chat(token, {"user": token})])
            output += await sent_by_the_admin_port(admin, token)
            for command in (
                ("usage", "list"),
                ("usage", "export"),
                ("token", "list", "tester"),
                ("check",),
                ("alerts", "list"),
            ):
                output += await printed_by(command, file)
    embedded = await asyncio.to_thread(EmbeddedStore.start, data)
    client = Client.connect(embedded.url, timeout_s=5)
    output += await keyspace(client)
    await client.close()
    await asyncio.to_thread(embedded.stop)
    own = {name: (data / name).read_text().strip() for name in OWN_FILES}
    for name in OWN_FILES:
        (data / name).unlink()
    output += log.read_bytes() + await asyncio.to_thread(contents, data)
    for proof in (
        b"unknown_path",
        b"internal_error",
        b"Traceback",
        b"upstream_auth_failed",
        b"tester-",
        b"gw:{tester}",
        b"alert_failed",
        b"balance.low",
    ):
        assert proof in output
    for secret in (token.rpartition("-")[2], credential, hook, *own.values()):
        assert pieces_in(secret, output) == []
