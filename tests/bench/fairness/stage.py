"""The gateway of one row, and its callers: each a process of its own."""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec

from gateway.chain.services import Store
from gateway.config.schema import Config, StoreSettings, load
from gateway.domain.facts import AccountLimits
from gateway.store.client.client import Client
from gateway.store.embedded import EmbeddedStore
from gateway.store.pepper import make_pepper
from tests.bench.fairness.honest import HonestSettings
from tests.bench.fairness.rows import Row
from tests.bench.process import ROOT, family
from tests.cli.processes import free_port
from tests.forked import FORKED
from tests.patience import PATIENCE_S
from tests.whole.raw import chat, get

NEARLY_NONE: Final = AccountLimits(requests_per_minute=10_000_000, concurrent=10_000)
LIMITS: Final = {
    "honest": NEARLY_NONE,
    "heavy": NEARLY_NONE,
    "limited": AccountLimits(requests_per_minute=60),
    **{f"usual{number}": AccountLimits() for number in range(4)},
}
"""The accounts and their limits. Without limits of their own, they have those of the file."""

FILE: Final = """
listen: 127.0.0.1:{port}
admin: 127.0.0.1:{admin}
data: {data}
store: {{timeout: {store_timeout}}}
port: {{drain: 1{more_port}}}
channels:
  main: {{base_url: "http://127.0.0.1:{upstream}/v1"{more_channel}}}
  few: {{base_url: "http://127.0.0.1:{upstream}/v1", concurrent: 16}}
  apart: {{base_url: "http://127.0.0.1:{apart}/v1"}}
  away: {{base_url: "http://127.0.0.1:9/v1"}}
models:
  words: {{input: 1, output: 2, max_output_tokens: 100, channels: [main]}}
  other: {{input: 1, output: 2, max_output_tokens: 100, channels: [main]}}
  apart: {{input: 1, output: 2, max_output_tokens: 100, channels: [apart]}}
  few: {{input: 1, output: 2, max_output_tokens: 100, channels: [few]}}
  unreachable: {{input: 1, output: 2, max_output_tokens: 100, channels: [away]}}
groups:
  default: {{models: ["*"]}}
plugins:
  - use: usage-logger
  - use: auth
  - use: rate-limit
    with: {{requests_per_minute: 600, concurrent: 8}}
  - use: quota
  - use: model-routing
"""


class Stage:
    """The running processes of one row, and where their output is.

    `ports`: the gateway's, its admin port, and the first caller's upstream.
    """

    def __init__(self, row: Row, folder: Path, ports: tuple[int, int, int], tokens: dict[str, str], pid: int) -> None:
        self.row = row
        self.folder = folder
        self.data = folder / "data"
        self.log = folder / "log"
        self.port, self.admin, self.apart = ports
        self.tokens = tokens
        self.pid = pid
        self.store = Client.connect(EmbeddedStore.start(self.data).url, timeout_s=5, connections=1)

    @property
    def hostile_tokens(self) -> list[str]:
        """The tokens of the first caller's accounts."""
        names = [f"usual{number}" for number in range(4)]
        names = {"usual": names[:1], "four": names}.get(self.row.account, [self.row.account])
        return [self.tokens[name] for name in names]

    def honest(self) -> HonestSettings:
        """Return what the second caller of this row does."""
        fields: dict[str, object] = {}
        if self.row.second == "large":
            fields = {"metadata": {"a": "x" * 20_000}}
        elif self.row.second == "few":
            fields = {"model": "few"}
        settings = HonestSettings(self.port, chat(self.tokens["honest"], fields).decode())
        if self.row.second == "same-address":
            settings.address = "127.0.0.1"
        elif self.row.second == "few":
            settings.in_turn = True  # on a machine that stood still, requests sent when due would fill the channel
        elif self.row.second == "admin":
            settings.port = self.admin
            settings.request = get("/metrics", (self.data / "admin.token").read_text().strip()).decode()
        return settings


def prepare(folder: Path) -> dict[str, str]:
    """Make a data folder with all accounts, to be copied for each row; return the tokens of the accounts."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "gateway.yaml"
    file.write_text(
        FILE.format(
            port=1, admin=2, upstream=3, apart=4, data=folder / "data", store_timeout=1, more_port="", more_channel=""
        )
    )
    config = load(file).config
    config.data_path.mkdir(mode=0o700)
    embedded = EmbeddedStore.start(config.data_path)
    try:
        return asyncio.run(_accounts(config, embedded.url))
    finally:
        embedded.stop()


async def _accounts(config: Config, url: str) -> dict[str, str]:
    tokens = {}
    make_pepper(config.data_path)
    async with Store.open(config, url) as store:
        for name, limits in LIMITS.items():
            await store.accounts.create(name)
            await store.accounts.change(name, limits=limits)
            await store.wallet.credit(name, "opening", 10**12)
            tokens[name] = (await store.tokens.create(name)).token
    return tokens


def configure(
    row: Row, folder: Path, template: Path, upstreams: Sequence[int], store_timeout: float
) -> tuple[int, int]:
    """Make the folder of a row's gateway, with the accounts of the template; return its port and its admin port."""
    folder.mkdir()
    shutil.copytree(template / "data", folder / "data", ignore=shutil.ignore_patterns("store.sock", "store.lock"))
    port, admin = free_port(), free_port()
    more_port, more_channel = (f", {more}" if more else "" for more in (row.port, row.channel))
    text = FILE.format(
        port=port,
        admin=admin,
        upstream=upstreams[0],
        apart=upstreams[1],
        data=folder / "data",
        store_timeout=store_timeout,
        more_port=more_port,
        more_channel=more_channel,
    )
    (folder / "gateway.yaml").write_text(text)
    return port, admin


@asynccontextmanager
async def staged(
    row: Row,
    folder: Path,
    template: Path,
    tokens: dict[str, str],
    upstreams: Sequence[int],
    store_timeout: float = StoreSettings().timeout,
) -> AsyncIterator[Stage]:
    """Run the gateway of a row, with one worker, and yield it when it answers."""
    port, admin = configure(row, folder, template, upstreams, store_timeout)

    def limit_descriptors() -> None:
        if row.descriptors is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (row.descriptors, row.descriptors))

    with (folder / "log").open("wb") as log:
        gateway = await asyncio.create_subprocess_exec(
            *(FORKED, "-m", "gateway", "serve", "-c", str(folder / "gateway.yaml")),
            stdout=log,
            stderr=log,
            cwd=ROOT,
            preexec_fn=None if row.descriptors is None else limit_descriptors,
        )
    try:
        async with asyncio.timeout(PATIENCE_S):
            while b"is served" not in (folder / "log").read_bytes():
                if gateway.returncode is not None:
                    raise RuntimeError(f"the gateway does not serve:\n{(folder / 'log').read_text()[-2000:]}")
                await asyncio.sleep(0.02)
        stage = Stage(row, folder, (port, admin, upstreams[1]), tokens, worker_of(gateway.pid))
        try:
            yield stage
        finally:
            await stage.store.close()
    finally:
        with suppress(ProcessLookupError):
            gateway.terminate()
        try:
            await asyncio.wait_for(gateway.wait(), PATIENCE_S)
        except TimeoutError:
            gateway.kill()
            await gateway.wait()


def worker_of(pid: int) -> int:
    """Return the child that serves the public port: the one that was started last."""
    return max(family(pid)[1:])


def process(module: str, *arguments: str) -> AbstractAsyncContextManager[asyncio.subprocess.Process]:
    """Run a module of this package until the block ends."""

    @asynccontextmanager
    async def running() -> AsyncIterator[asyncio.subprocess.Process]:
        child = await asyncio.create_subprocess_exec(
            *(FORKED, "-m", f"tests.bench.fairness.{module}", *arguments),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            cwd=ROOT,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
            limit=1024 * 1024,
        )
        try:
            yield child
        finally:
            with suppress(ProcessLookupError):
                child.kill()
            await child.wait()

    return running()


@asynccontextmanager
async def upstreams() -> AsyncIterator[tuple[int, int]]:
    """Run two upstreams and yield their ports. What the second does for the first caller delays no other."""
    async with process("upstream") as one, process("upstream") as other:
        assert one.stdout is not None and other.stdout is not None
        yield int(await one.stdout.readline()), int(await other.stdout.readline())


def honest(stage: Stage) -> AbstractAsyncContextManager[asyncio.subprocess.Process]:
    """Run the second caller of a row."""
    return process("honest", msgspec.json.encode(stage.honest()).decode())


def hostile(stage: Stage) -> AbstractAsyncContextManager[asyncio.subprocess.Process]:
    """Run the first caller of a row."""
    return process("hostile", stage.row.attack, str(stage.port), str(stage.apart), ",".join(stage.hostile_tokens))
