"""A store, the workers of a gateway that a test may kill, and the books that must balance afterwards.

The books are the account, its ledger and the usage log.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from gateway.chain.services import Store
from gateway.cli.commands import program
from gateway.config.schema import load
from gateway.store.accounts import Account
from gateway.store.embedded import EmbeddedStore
from gateway.store.pepper import make_pepper
from gateway.usage import queries
from gateway.usage.record import Record
from tests.cli.processes import free_port
from tests.forked import FORKED
from tests.patience import PATIENCE_S
from tests.records import close_open, usage_sink

OPENING = 1_000_000_000
LEASE_S = 4
"""Seconds until a hold expires, with the timers below."""

FILE = """
listen: 127.0.0.1:{port}
admin: null
port: {{allow_non_streaming: true}}
redis: {redis}
data: {folder}/data
channels:
  fake: {{base_url: "{upstream}", timers: {{connect: 0.25, first_byte: 0.5, idle: 3, total: 3}}}}
{first}
models:
  words: {{input: 1, output: 2, max_output_tokens: 100, channels: [{tried_first}{{use: fake, priority: 1}}]}}
groups: {{default: {{}}}}
plugins:
  - use: tests.worker_process:Told
  - use: usage-logger
  - use: {auth}
  - use: rate-limit
    with: {{requests_per_minute: 1000000, concurrent: 1000}}
  - use: quota
    with: {{max_holds: 1000, lease_margin: 1, on_crash: {on_crash}}}
  - use: model-routing
{more}
"""


class Books:
    """A store of its own in `folder/store`, the account `tester` with much credit, and the gateway's configuration.

    `first`: the base URL of an upstream that is tried before `upstream`. `auth`: the entry of `auth` in the chain.
    `more`: settings.
    """

    def __init__(
        self,
        folder: Path,
        upstream: str,
        on_crash: str = "release",
        first: str = "",
        auth: str = "auth",
        more: str = "",
    ) -> None:
        self.folder = folder
        self.port = free_port()
        self.embedded = EmbeddedStore.start(folder / "store")
        self.url = self.embedded.url
        self.file = folder / "gateway.yaml"
        self.log_file = folder / "worker.log"
        self._patient = folder / "patient.yaml"
        self._text = {"port": self.port, "folder": folder, "upstream": upstream, "on_crash": on_crash}
        self._text |= {"auth": auth, "more": more}
        timers = "{connect: 0.25, first_byte: 0.5, idle: 3, total: 3}"
        self._text["first"] = f'  first: {{base_url: "{first}", timers: {timers}}}' if first else ""
        self._text["tried_first"] = "first, " if first else ""
        self.use_store_at(self.url)
        self.token = ""

    def use_store_at(self, url: str) -> None:
        """Configure the gateways that are started from now on to use the store at `url`."""
        text = FILE.format(redis=url, **self._text)
        self.file.write_text(text)
        self._patient.write_text(f"{text}store: {{timeout: {PATIENCE_S}}}\n")

    async def open(self, balance: int = OPENING) -> None:
        """Create the account and a token."""
        async with self.store() as store:
            await store.accounts.create("tester")
            await store.wallet.credit("tester", "opening", balance)
            self.token = (await store.tokens.create("tester")).token
            if self.url == self.embedded.url:  # the account must be on the disk before a test kills the store
                await store.client.call("WAITAOF", 1, 0, 0)

    @asynccontextmanager
    async def store(self) -> AsyncIterator[Store]:
        """Yield the store, reached directly and with a long timeout, also where the gateway uses a proxy."""
        config = load(self._patient).config
        make_pepper(config.data_path)
        async with Store.open(config, self.url) as store:
            yield store

    def kill_store(self) -> None:
        """Kill the store and start it again with its data."""
        os.kill(self.embedded.pid, 9)
        self.embedded.stop()
        self.embedded = EmbeddedStore.start(self.folder / "store")

    @asynccontextmanager
    async def worker(self, crash_at: str = "") -> AsyncIterator[asyncio.subprocess.Process]:
        """Start one worker and yield it when it is ready. It is terminated at the end if it still runs."""
        with self.log_file.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *(FORKED, "-m", "tests.worker_process", str(self.file), str(self.port)),
                env=os.environ | {"GATEWAY_CRASH_AT": crash_at},
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
            )
        try:
            assert process.stdout is not None
            assert await asyncio.wait_for(process.stdout.readline(), PATIENCE_S) == b"ready\n", self.log()
            yield process
        finally:
            with suppress(ProcessLookupError):
                process.terminate()
            await asyncio.wait_for(process.wait(), PATIENCE_S)

    def journal(self) -> list[Path]:
        """Return the journal's files: the settlements that workers could not write to the store yet."""
        return list((self.folder / "data" / "journal").glob("*.jsonl"))

    async def wait_delivered(self) -> None:
        """Wait until the workers have written all settlements in the journal to the store."""
        async with asyncio.timeout(PATIENCE_S):
            while self.journal():
                await asyncio.sleep(0.005)

    def log(self) -> str:
        """Return what the workers logged."""
        return self.log_file.read_text()

    def planned(self, how: str = "plan") -> set[str]:
        """Return the ids of the requests that went by a plan; with `fill`, of those that began to."""
        return set(re.findall(rf"{how} ([0-9a-f-]{{36}})\n", self.log()))

    async def account(self) -> Account:
        """Return the account as it is now."""
        async with self.store() as store:
            account = await store.accounts.get("tester")
        assert account is not None
        return account

    async def records(self) -> dict[str, Record]:
        """Move the usage log into its files, close unfinished requests as crashed, and return the records by id."""
        async with self.store() as store:
            return await records_of(store)

    async def charges(self) -> dict[str, list[int]]:
        """Return the charges of each request in micros, one for each line of the ledger."""
        charges: dict[str, list[int]] = {}
        async with self.store() as store:
            for _, fields in await store.client.call("XRANGE", "gw:{tester}:ledger", "-", "+"):
                if fields[b"kind"] not in (b"credit", b"adjust"):
                    charges.setdefault(fields[b"id"].decode(), []).append(-int(fields[b"amount"]))
        return charges

    async def verify(self) -> dict[str, Any]:
        """Assert that `gateway verify` finds nothing wrong and that nothing is held, and return its report."""
        command = ["verify", "--json", "--config", str(self._patient)]
        result = await asyncio.to_thread(CliRunner().invoke, program(), command)
        assert result.exit_code == 0, result.output
        account = await self.account()
        assert (account.held_micros, account.holds) == (0, 0)
        report: dict[str, Any] = json.loads(result.stdout)
        return report


async def records_of(store: Store) -> dict[str, Record]:
    """Move a usage log into its home, close unfinished requests as crashed, and return the records by id."""
    sink = usage_sink(store.usage, retention_months=13, crashed_after_s=600)
    while await sink.move_batch():
        pass
    close_open(sink.home, round(time.time() * 1000))
    sink.home.close()
    return {record.id: record for record in queries.select(store.usage.home)}
