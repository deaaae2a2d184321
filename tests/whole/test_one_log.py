"""Three gateways behind the shipped nginx.conf, with the shipped configuration and one database: each answers for all of them.

With `GATEWAY_ONE_LOG_REQUESTS` requests, 36 by default.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import msgspec
import pytest

from gateway.chain.services import Store
from gateway.config.schema import load
from gateway.domain.exchange import Outcome
from gateway.fake_upstream import FakeUpstream
from gateway.store.embedded import EmbeddedStore
from gateway.usage import queries
from gateway.usage.home import Home, postgres
from gateway.usage.sums import Selected, grouped
from tests.cli.processes import all_ready, children, free_port
from tests.forked import FORKED
from tests.patience import PATIENCE_S
from tests.records import id_at
from tests.whole.raw import ask, chat, get

DEPLOY = Path(__file__).parents[2] / "deploy"
REQUESTS = int(os.environ.get("GATEWAY_ONE_LOG_REQUESTS", "36"))
AT_ONCE = 6

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="children are looked up in /proc"),
    pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed"),
]


class Pod:
    """One gateway with the shipped configuration, or another `text` with its addresses, as in a pod of its own."""

    def __init__(self, folder: Path, environment: dict[str, str], upstream: str, text: str = "") -> None:
        self.folder, self.port, self._environment = folder, free_port(), environment
        self.file = folder / "gateway.yaml"
        text = text or (DEPLOY / "gateway.yaml").read_text().replace(
            "requests_per_minute: 60, tokens_per_minute: 100000", "requests_per_minute: 100000"
        )
        for shipped, here in (
            ("0.0.0.0:8080", f"127.0.0.1:{self.port}"),
            ("0.0.0.0:9090", f"127.0.0.1:{free_port()}"),
            ("/var/lib/sluicegate/data", str(folder / "data")),
            ("https://api.openai.com/v1", upstream),
        ):
            assert shipped in text
            text = text.replace(shipped, here)
        folder.mkdir()
        self.file.write_text(text)

    @property
    def usage(self) -> Home:
        """The home of the log, as this gateway has it."""
        return postgres(self._environment["GATEWAY_DATABASE"], self.folder / "data" / "usage")

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        with (self.folder / "serve.log").open("ab") as log:
            self._process = await self._started("serve", "--workers", "1", stderr=log.fileno())
        try:
            await all_ready(self._process)
            yield
        finally:
            self.signal(signal.SIGKILL)
            await self._process.wait()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to all processes of the gateway, to its parent last: by its end, it would tell the others to stop."""
        with suppress(ProcessLookupError):
            for pid in (*children(self._process.pid), self._process.pid):
                os.kill(pid, number)

    async def run(self, *command: str, code: int = 0) -> str:
        """Return what a command prints, run in the pod."""
        process = await self._started(*command, stderr=asyncio.subprocess.STDOUT)
        output, _ = await asyncio.wait_for(process.communicate(), PATIENCE_S)
        assert process.returncode == code, output.decode()
        return output.decode()

    async def _started(self, *command: str, stderr: int) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *(FORKED, "-m", "gateway", *command, "--config", str(self.file)),
            cwd=self.folder,
            env=os.environ | self._environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=stderr,
        )

    def ended(self) -> set[str]:
        return {record.id for record in queries.select(self.usage) if record.outcome}


@asynccontextmanager
async def nginx(folder: Path, pods: list[Pod]) -> AsyncIterator[int]:
    """Run the shipped nginx.conf, without TLS, in front of the pods; yield its port."""
    port, text = free_port(), (DEPLOY / "nginx.conf").read_text()
    servers = "".join(f"server 127.0.0.1:{pod.port};\n" for pod in pods)
    text = re.sub(r"server gateway:8080;", servers, text)
    text = re.sub(r"listen 8443 ssl http2;", f"listen 127.0.0.1:{port};", text)
    text = re.sub(r"(?m)^\s*(ssl_\w+|http2) .*;.*$", "", text)
    text = text.replace("/tmp/nginx", f"{folder}/nginx").replace("/dev/stdout", f"{folder}/access.log")
    file = folder / "nginx.conf"
    file.write_text(text)
    with (folder / "nginx.log").open("ab") as log:
        arguments = ("-c", str(file), "-g", "daemon off;")
        process = await asyncio.create_subprocess_exec("nginx", *arguments, stdout=log, stderr=log)
    try:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                with suppress(OSError):
                    (await asyncio.open_connection("127.0.0.1", port))[1].close()
                    break
                await asyncio.sleep(0.02)
        yield port
    finally:
        process.terminate()
        await process.wait()


async def sent(port: int, token: str, count: int) -> set[str]:
    """Send requests, some at once, and return the ids of those that were served."""
    ids: set[str] = set()
    request = chat(token, {"model": "gpt-4o-mini"})

    async def some(count: int) -> None:
        for _ in range(count):
            answer = await ask(port, request)
            assert answer.status == 200
            ids.add(answer.headers["x-request-id"])

    await asyncio.gather(*(some(count // AT_ONCE) for _ in range(AT_ONCE)))
    return ids


async def held(port: int, token: str, count: int, began: asyncio.Event) -> dict[str, bool]:
    """Send requests while a gateway is killed; return the ids that callers have, and whether the answer was whole."""
    ids: dict[str, bool] = {}
    request = chat(token, {"model": "gpt-4o-mini"})

    async def some(count: int) -> None:
        for _ in range(count):
            with suppress(OSError, EOFError):
                answer = await ask(port, request)
                if answer.status == 200:
                    ids[answer.headers["x-request-id"]] = answer.whole
            if len(ids) > AT_ONCE:
                began.set()

    await asyncio.gather(*(some(count // AT_ONCE) for _ in range(AT_ONCE)))
    return ids


async def until_ended(pods: list[Pod], ids: set[str]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not all(pod.ended() >= ids for pod in pods):
            await asyncio.sleep(0.1)


async def answers(pod: Pod, token: str, ids: set[str]) -> set[int]:
    """Return with which statuses a gateway answers for these requests."""
    found = [await ask(pod.port, get(f"/v1/requests/{id_}", token)) for id_ in ids]
    return {answer.status for answer in found}


async def test_each_gateway_answers_for_all_also_for_one_that_has_gone_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, database_url: str
) -> None:
    began_ms = round(time.time() * 1000)
    monkeypatch.setenv("GATEWAY_PEPPER", "a-pepper-of-enough-characters-for-it")
    store = await asyncio.to_thread(EmbeddedStore.start, tmp_path / "store")
    environment = {"GATEWAY_REDIS": store.url, "OPENAI_API_KEY": "key", "GATEWAY_DATABASE": database_url}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    async with FakeUpstream(pace_s=0, key="key") as upstream, AsyncExitStack() as stack:
        stack.callback(store.stop)
        pods = [Pod(tmp_path / f"pod-{number}", environment, upstream.base_url) for number in range(3)]
        for pod in pods:
            await stack.enter_async_context(pod.serving())
        port = await stack.enter_async_context(nginx(tmp_path, pods))
        config = load(pods[0].file).config
        async with Store.open(config, store.url) as opened:
            await opened.accounts.create("tester")
            await opened.wallet.credit("tester", "opening", 5_000_000_000)
            token = (await opened.tokens.create("tester")).token
        names = [(pod.folder / "data" / "usage" / "installation").read_text()[:8] for pod in pods]
        ids = await sent(port, token, REQUESTS)
        assert len(ids) == REQUESTS
        await until_ended(pods, ids)
        received = [sum(record.gateway == name for record in queries.select(pods[0].usage)) for name in names]
        assert min(received) > REQUESTS // 6, "each gateway received some"

        gone, *others = pods
        began = asyncio.Event()
        loading = asyncio.create_task(held(port, token, REQUESTS, began))
        await began.wait()
        gone.signal(signal.SIGKILL)
        shutil.rmtree(gone.folder / "data")
        under_way = await loading
        assert len(under_way) > REQUESTS // 2
        whole = {id_ for id_, ended in under_way.items() if ended}
        ids |= whole
        await until_ended(others, ids)
        for pod in others:
            assert await answers(pod, token, ids) == {200}
            records = {record.id: record.outcome for record in queries.select(pod.usage)}
            assert {records[id_] for id_ in ids} == {Outcome.COMPLETED}
            assert under_way.keys() <= records.keys(), "also what was cut is known to have arrived"
            (total,) = [each for each in grouped(pod.usage, ["model"], Selected(), []) if each["model"]]
            assert total["requests"] >= total["completed"] >= len(ids)
        lines = await others[0].run("usage", "list", "--limit", str(10 * REQUESTS), "--json")
        assert {json.loads(line)["id"] for line in lines.splitlines()} >= ids

        before, since = id_at(began_ms - 3_600_000), id_at(round(time.time() * 1000))
        answer = await ask(others[0].port, get(f"/v1/requests/{before}", token))
        assert "No request with this id has ended in this account" in answer.error["message"]
        verdict = msgspec.json.decode(await others[0].run("trace", since, "--json", code=3))
        assert "may have arrived" in verdict["verdict"]
        assert any(names[0] in text for text in verdict["unasked"])
        answer = await ask(others[0].port, get(f"/v1/requests/{since}", token))
        assert answer.error["code"] == "request_not_found"
        assert "not every gateway could be asked" in answer.error["message"]

        others[1].signal(signal.SIGSTOP)
        stopped_ms = round(time.time() * 1000)
        assert await answers(others[0], token, ids) == {200}
        verdict = msgspec.json.decode(await others[0].run("trace", id_at(stopped_ms), "--json", code=3))
        assert any(names[2] in text for text in verdict["unasked"])
        others[1].signal(signal.SIGCONT)
        ids |= await sent(others[0].port, token, AT_ONCE)
        await until_ended(others, ids)
