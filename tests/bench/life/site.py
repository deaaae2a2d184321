"""The gateway under test: its folder, its processes, its commands, and its accounts."""

from __future__ import annotations

import asyncio
import os
import signal
import struct
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from gateway import AccountLimits
from gateway.chain.services import Store
from gateway.config.schema import load
from gateway.store.embedded import EmbeddedStore
from gateway.store.pepper import make_pepper
from gateway.store.tokens import TokenStatus
from tests.bench.life.callers import FAST
from tests.bench.life.hostile import EXACT_PRICE, EXACT_WORDS
from tests.bench.life.settings import Settings
from tests.bench.life.world import World
from tests.bench.process import ROOT, family
from tests.cli.processes import all_ready, children
from tests.fixtures.make_data import past_clock
from tests.forked import FORKED

START_S = 60.0
RICH = 1_000_000_000_000
LONG_AGO_S = 60 * 86_400
"""Before every time that the gateway's clock may tell."""


class Site:
    """A gateway with its data in `folder/data` and its log in `folder/serve.log`."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.file = folder / "gateway.yaml"
        self.log = folder / "serve.log"
        self.settings = settings
        self.write(settings.render())
        self._clock = folder / "clock"
        self._clock.write_bytes(bytes(8))
        self._environment: dict[str, str] | None = None
        self._process: asyncio.subprocess.Process | None = None
        self.exit_codes: list[int] = []

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def write(self, text: str) -> None:
        """Write the configuration file."""
        self.file.write_text(text)

    async def own_clock(self) -> None:
        """Give all that is started from now on a clock that `step_clock` sets."""
        library = await past_clock(self.folder)
        self._environment = {**os.environ, "LD_PRELOAD": str(library), "CLOCK_OFFSET_FILE": str(self._clock)}

    def step_clock(self, seconds: int) -> None:
        """Set the clock of the gateway and its embedded store to so many seconds from the present time."""
        with self._clock.open("r+b") as file:
            file.write(struct.pack("q", seconds))

    async def start(self) -> None:
        """Start the gateway and wait until it serves."""
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(FORKED, "-m", "gateway", "serve", "--config", str(self.file)),
                cwd=ROOT,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=self._environment,
            )
        await asyncio.wait_for(all_ready(self._process), START_S)

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def stop(self) -> int:
        """Stop the gateway by SIGTERM and return its exit code. One that does not end in time is killed."""
        assert self._process is not None
        with suppress(ProcessLookupError):
            self._process.terminate()
        try:
            code = await asyncio.wait_for(self._process.wait(), START_S)
        except TimeoutError:
            self._process.kill()
            code = await self._process.wait()
        self.exit_codes.append(code)
        return code

    async def run(self, *words: str) -> tuple[int, str]:
        """Run one of the gateway's commands, and return its exit code and what it printed."""
        process = await asyncio.create_subprocess_exec(
            *(FORKED, "-m", "gateway", *words, "--config", str(self.file)),
            cwd=ROOT,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=self._environment,
        )
        out, _ = await asyncio.wait_for(process.communicate(), 120)
        assert process.returncode is not None
        return process.returncode, out.decode()

    def family(self) -> list[int]:
        """Return the gateway's processes, without its store."""
        return family(self.pid)

    def store_pid(self) -> int:
        return int((self.data / "store.pid").read_text())

    def workers(self) -> list[int]:
        """Return the workers, the one that has run longest first: they write how many tasks they have."""
        alive = children(self.pid)
        return sorted(pid for pid in alive if (self.folder / f"tasks-{pid}").exists())

    def sinks(self) -> list[int]:
        """Return the sink, which holds its lock file open."""
        return [pid for pid in children(self.pid) if self._opened(pid, "sink.lock")]

    def _opened(self, pid: int, name: str) -> bool:
        with suppress(OSError):
            return any(link.readlink().name == name for link in Path(f"/proc/{pid}/fd").iterdir())
        return False

    @asynccontextmanager
    async def store(self) -> AsyncIterator[Store]:
        """Yield the store while the gateway does not run."""
        config = load(self.file).config
        embedded = EmbeddedStore.start(self.data) if config.redis == "embedded" else None
        try:
            make_pepper(config.data_path)
            async with Store.open(config, embedded.url if embedded else config.redis) as store:
                yield store
        finally:
            if embedded is not None:
                embedded.stop()

    async def populate(self, world: World) -> None:
        """Create the accounts and tokens of all callers."""
        async with self.store() as store:
            for account, balance in {
                "main": RICH,
                "managed": RICH,
                "broke": 0,
                "exact": world.credited * EXACT_WORDS * EXACT_PRICE,
            }.items():
                await store.accounts.create(account)
                if balance:
                    await store.wallet.credit(account, f"opening-{account}", balance)
                world.tokens[account] = (await store.tokens.create(account)).token
            for number in range(FAST):
                account = f"fast{number}"
                await store.accounts.create(account)
                await store.accounts.change(account, limits=AccountLimits(requests_per_minute=20 + number))
                await store.wallet.credit(account, f"opening-{account}", RICH)
                world.tokens[account] = (await store.tokens.create(account)).token
            await self._populate_bad(store, world)

    async def _populate_bad(self, store: Store, world: World) -> None:
        expired = await store.tokens.create("main", expires_at=int(time.time()) - LONG_AGO_S)
        disabled, deleted = await store.tokens.create("main"), await store.tokens.create("main")
        await store.tokens.set_status(disabled.id, TokenStatus.DISABLED)
        await store.tokens.delete(deleted.id)
        good = world.tokens["main"]
        bad = {"expired": expired.token, "disabled": disabled.token, "deleted": deleted.token}
        world.tokens |= bad | {"unknown": f"{good[:-6]}AAAAAA", "malformed": "sk-what-is-this"}

    def kill(self, pid: int, number: int = signal.SIGKILL) -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
