"""Secrets: none is stored or shown, keys and tokens are rotated."""

from __future__ import annotations

import asyncio
import json
import os
import re
import secrets
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import ClientSession

from gateway import Outcome
from gateway.chain.services import Store
from gateway.config.schema import Config, load
from gateway.domain.facts import AccountLimits, Budgets
from gateway.fake_upstream import FakeUpstream
from gateway.store.client.client import Client
from gateway.store.embedded import EmbeddedStore
from gateway.store.pepper import make_pepper
from gateway.testing import Running
from tests.cli.processes import Served, demo_in, free_port, gateway
from tests.cli.processes import serving as secret_rotation_serving
from tests.forked import FORKED
from tests.patience import PATIENCE_S, wait_until
from tests.whole.aftermath import charged, end_records, last_end_record
from tests.whole.conftest import CHAIN, Serve, configuration
from tests.whole.raw import ask, chat, get
from tests.whole.scripted import CHUNKED, LAST, Forever, Gated, Scripted, Step, chunk
from tests.whole.test_stream import DONE, STREAM, USAGE, WORDS
from tests.whole.test_usage_log import contents, every_use

# No eight characters of any secret are in a file, a log line, a record, a key of the store or a response.
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
            *(FORKED, "-m", "gateway", "serve", "--config", str(file)), stdout=output, stderr=output
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


# The key of an upstream is rotated by its file: the next request has the new one, and an open stream goes on with the old.
OLD, NEW = "sk-old-key-of-the-upstream", "sk-new-key-of-the-upstream"
BODY = {"model": "demo-words", "stream": True, "messages": [{"role": "user", "content": "hi"}]}


def mounted(folder: Path, secret: str) -> None:
    """Write a secret as Kubernetes mounts one: a link to a link to a folder, which is exchanged at once."""
    version = folder / f"..{time.time_ns()}"
    version.mkdir()
    (version / "key").write_text(f"{secret}\n")
    (folder / "..new").symlink_to(version.name)
    (folder / "..new").replace(folder / "..data")
    if not (folder / "key").exists():
        (folder / "key").symlink_to("..data/key")


def lines(folder: Path, event: str) -> list[dict[str, Any]]:
    written = [json.loads(line) for line in (folder / "serve.log").read_text().splitlines() if line.startswith("{")]
    return [line for line in written if line["event"] == event]


async def key_of_next(served: Served, upstream: Gated) -> str:
    async with (
        aiohttp.ClientSession(headers=served.headers) as session,
        session.post(f"{served.base_url}/chat/completions", json=BODY) as answer,
    ):
        assert (answer.status, (await answer.read())[-14:]) == (200, DONE)
    found = re.search(rb"Bearer (\S+)", upstream.requests[-1])
    assert found is not None
    return found[1].decode()


async def test_a_key_is_rotated_without_a_restart(tmp_path: Path) -> None:
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    mounted(secrets, OLD)
    file = demo_in(tmp_path, workers=2)
    begin, rest = b"".join(WORDS[:3]), b"".join(WORDS[3:]) + USAGE + DONE
    async with Gated(begin, rest) as upstream:
        text = re.sub(r"demo: \{base_url: \S+\}", f"demo: {{base_url: '{upstream.base_url}', KEY}}", file.read_text())
        file.write_text(text.replace("KEY", "api_key: '${file:secrets/key}'"))
        async with secret_rotation_serving(file) as served, aiohttp.ClientSession(headers=served.headers) as session:
            async with session.post(f"{served.base_url}/chat/completions", json=BODY) as stream:
                await stream.content.readuntil(b"\n\n")
                mounted(secrets, NEW)
                await wait_until(lambda: len(lines(tmp_path, "reloaded")) == 2)
                assert [await key_of_next(served, upstream) for _ in range(4)] == 4 * [NEW]
                await refused_files(tmp_path, secrets / "key")
                assert await key_of_next(served, upstream) == NEW
                upstream.gate.set()
                assert (await asyncio.wait_for(stream.read(), PATIENCE_S)).endswith(rest.replace(USAGE, b""))
            assert OLD.encode() in upstream.requests[0]
            (secrets / "key").unlink()
            mounted(secrets, OLD)
            await wait_until(lambda: len(lines(tmp_path, "reloaded")) == 4)
            assert await key_of_next(served, upstream) == OLD
            # Not after the end: the store is there for a moment longer, and is lost then.
            code, out, err = await gateway("check", "--config", str(file), cwd=tmp_path)
            assert (code, out.splitlines()[-1:], OLD in out + err) == (0, ["good"], False), err
        log = (tmp_path / "serve.log").read_text() + served.printed
        assert OLD not in log and NEW not in log


async def refused_files(folder: Path, key: Path) -> None:
    """Put wrong files in place of a key, one after another: each is one line in the log, and nothing else happens."""
    wrong: list[tuple[Callable[[], object], str]] = [
        (key.unlink, "is missing"),
        (key.touch, "is empty"),
        (lambda: key.write_text(f"{NEW} {NEW}"), "api_key must be visible ASCII"),
        (lambda: key.write_bytes(os.urandom(40) + b"\xff"), "is not text in UTF-8"),
    ]
    for count, (change, reason) in enumerate(wrong, 1):
        change()
        await wait_until(lambda count=count: len(lines(folder, "reload_refused")) == count)  # type: ignore[misc]
        assert reason in lines(folder, "reload_refused")[-1]["reason"]
    assert len(lines(folder, "reloaded")) == 2


# A token that is replaced shares its budgets and limits with its successor, and open streams finish where the operator says so.
async def test_a_successor_has_what_is_left_of_the_budgets_and_limits_of_its_predecessor(gateway: Running) -> None:
    await gateway.token()
    tokens = gateway.store.tokens
    old = await tokens.create("tester", budgets=Budgets(requests=3), limits=AccountLimits(requests_per_minute=1000))
    assert (await ask(gateway.port, chat(old.token))).status == 200
    new = await tokens.rotate(old.id, 3600)
    answers = [await ask(gateway.port, chat(text)) for text in (new.token, old.token, new.token, old.token)]
    assert [answer.status for answer in answers] == [200, 200, 402, 402]
    third = await tokens.rotate(new.id, 0)
    assert (await ask(gateway.port, chat(third.token))).error["code"] == "budget_exceeded"
    shown = (await ask(gateway.port, get("/v1/account", third.token))).body
    assert b'"used_requests":3' in shown
    assert (await ask(gateway.port, chat(new.token))).error["code"] == "token_expired"
    await tokens.change(third.id, budgets={"requests": None}, limits={"requests_per_minute": 4})
    taken = [await ask(gateway.port, chat(third.token)) for _ in range(5)]
    assert "429" in {str(answer.status) for answer in taken}
    assert (await ask(gateway.port, chat(third.token))).status == 429
    assert await gateway.store.wallet.verify("tester") == []


async def test_what_is_revoked_finishes_where_the_operator_chose_so(serve: Serve) -> None:
    gate = asyncio.Event()
    script: list[Step] = [CHUNKED + chunk(WORDS[1]), Forever(b"", 0.01, until=gate.is_set), chunk(STREAM) + LAST]
    async with Scripted(script) as upstream, serve(upstream.base_url, more="port: {open_streams: finish}") as gateway:
        token = await gateway.token()
        open_ = asyncio.create_task(ask(gateway.port, chat(token)))
        exchanges = gateway.gateway.runner.exchanges
        await wait_until(lambda: any(exchange.first_byte for exchange in exchanges))
        (known,) = await gateway.store.tokens.all_of("tester")
        await gateway.store.tokens.delete(known.id)
        assert (await ask(gateway.port, chat(token))).status == 401
        await asyncio.sleep(2.2)
        assert not open_.done()
        gate.set()
        answer = await asyncio.wait_for(open_, PATIENCE_S)
        await last_end_record(gateway)
        assert (answer.status, answer.whole) == (200, True)
        assert b"data: [DONE]" in answer.body
        assert b'"error"' not in answer.body
        (record,) = [each for each in await end_records(gateway) if each.id == answer.headers["x-request-id"]]
        assert record.outcome is Outcome.COMPLETED
        assert record.charge_micros == await charged(gateway) > 0
