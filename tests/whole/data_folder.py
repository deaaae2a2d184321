"""A data folder that a killed gateway left, used only through stable interfaces: commands, ports, YAML keys, Redis keys."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import sys
import tarfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import pytest
from redis import Redis

from tests.cli.processes import all_ready, free_port
from tests.forked import FORKED
from tests.patience import PATIENCE_S

FIXTURE: Final = Path(__file__).parent.parent / "fixtures" / "data"
PORTS: Final = ("PUBLIC", "ADMIN", "GOOD", "SLOW", "BROKEN", "CUTTING", "STALLING", "ERRING")
SECRETS: Final = ("GATEWAY_PEPPER", "GATEWAY_ADMIN_TOKEN")
"""Variables that are removed from the environment: the folder has these secrets."""
LEASE_MS: Final = 30_000
LAST_DAY: Final = "2025-11-03"
"""The day of the folder's last record. Records that a test adds are of later days."""
CHARGE: Final = 1 + 2 * 12
"""Micros for a request of the model `words`: one word of prompt, and twelve words of the fake upstream."""
ON_LINUX: Final = pytest.mark.skipif(
    sys.platform != "linux", reason="a killed gateway's store is found by its lock on Linux"
)
REQUEST: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def as_before(now: Any, before: Any) -> Any:
    """Return what is printed now, without the fields that objects did not have before."""
    if isinstance(now, dict) and isinstance(before, dict):
        return {name: as_before(value, before.get(name)) for name, value in now.items() if name in before}
    if isinstance(now, list) and isinstance(before, list) and len(now) == len(before):
        return [as_before(*pair) for pair in zip(now, before, strict=True)]
    return now


class DataFolder:
    """The data folder, its archive and its configuration in `folder`, and the commands of the gateway that uses them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.data, self.archive = folder, folder / "data", folder / "archive"
        self.ports = {name: free_port() for name in PORTS}
        own = {name: value for name, value in os.environ.items() if name not in SECRETS}
        self.environment = own | {f"{name}_PORT": str(port) for name, port in self.ports.items()}
        shutil.copy(FIXTURE / "gateway.yaml", folder)

    @classmethod
    def unpacked(cls, folder: Path) -> DataFolder:
        """Return what the killed gateway left."""
        data = cls(folder)
        data.unpack()
        return data

    def unpack(self) -> None:
        """Unpack what the killed gateway left."""
        with tarfile.open(FIXTURE / "data.tar.gz") as packed:
            if hasattr(tarfile, "data_filter"):  # since Python 3.11.4
                packed.extractall(self.folder, filter="data")
            else:
                packed.extractall(self.folder)

    async def run(self, *arguments: str, code: int = 0) -> str:
        """Run one command, assert its exit code, and return what it prints."""
        process = await self._started(*arguments, stderr=asyncio.subprocess.PIPE)
        out, err = await asyncio.wait_for(process.communicate(), PATIENCE_S)
        assert process.returncode == code, (arguments, out.decode(), err.decode())
        return out.decode()

    async def run_json(self, *arguments: str, code: int = 0) -> list[Any]:
        """Run one command and return the JSON lines that it prints."""
        return [json.loads(line) for line in (await self.run(*arguments, code=code)).splitlines()]

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[asyncio.subprocess.Process]:
        """Run `gateway serve` and yield it when it is ready. It is killed at the end if it still runs."""
        with (self.folder / "serve.log").open("ab") as log:
            process = await self._started("serve", stderr=log.fileno())
        try:
            await all_ready(process)
            yield process
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    @asynccontextmanager
    async def upstream(self, name: str, mode: str = "words", pace_s: float = 0) -> AsyncIterator[None]:
        """Run `gateway fake-upstream` on the port of this name."""
        arguments = ("--port", str(self.ports[name]), "--mode", mode, "--pace", str(pace_s))
        process = await self._started("fake-upstream", *arguments, stderr=asyncio.subprocess.DEVNULL)
        try:
            async with asyncio.timeout(PATIENCE_S):
                while process.returncode is None:
                    with suppress(OSError):
                        (await asyncio.open_connection("127.0.0.1", self.ports[name]))[1].close()
                        break
                    await asyncio.sleep(0.02)
            yield
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    @contextmanager
    def store(self) -> Iterator[Raw]:
        """Yield the embedded store, while a gateway serves."""
        with Redis(unix_socket_path=str(self.data / "store.sock"), decode_responses=True) as redis:
            yield Raw(redis)

    async def settled(self) -> None:
        """Wait until no charge is in the journal, no record in spool or stream, and nothing is held."""
        with self.store() as store, suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                while self._pending(store):
                    await asyncio.sleep(0.05)
            return
        with self.store() as store:
            raise AssertionError(f"still pending: {self._pending(store)}")

    def _pending(self, store: Raw) -> list[object]:
        files = [*(self.data / "journal").glob("*.jsonl"), *(self.data / "usage" / "spool").glob("*.jsonl")]
        stream = store.ask("XLEN", "gw:{usage}:stream")
        return [*files, *([stream] if stream else []), *store.keys("gw:{*}:leases")]

    async def _started(self, *arguments: str, stderr: int) -> asyncio.subprocess.Process:
        place = ("--config", "gateway.yaml") if arguments[0] != "fake-upstream" else ()
        return await asyncio.create_subprocess_exec(
            *(FORKED, "-m", "gateway", *arguments, *place),
            cwd=self.folder,
            env=self.environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=stderr,
        )


class Raw:
    """The keys of the store, read with plain Redis commands."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    def ask(self, *command: str | int) -> Any:
        """Send one command and return the reply."""
        return self._redis.execute_command(*command)  # type: ignore[no-untyped-call, unused-ignore]

    def keys(self, pattern: str = "*") -> list[str]:
        """Return all keys that match, sorted."""
        return sorted(self.ask("KEYS", pattern))

    def patterns(self, *, lasting: bool = False) -> dict[str, str]:
        """Return the patterns of the keys and their types; with `lasting`, only of keys without an expiry."""
        keys = [key for key in self.keys() if not lasting or self.ask("TTL", key) == -1]
        return {pattern(key): str(self.ask("TYPE", key)) for key in keys}

    def accounts(self) -> list[str]:
        """Return the accounts' ids."""
        return [key[4:-9] for key in self.keys("gw:{*}:account")]

    def ledger(self, account: str) -> list[list[Any]]:
        """Return the lines of an account's ledger: id and fields."""
        return [[line, fields] for line, fields in self.ask("XRANGE", f"gw:{{{account}}}:ledger", "-", "+")]

    def fields(self) -> dict[str, list[str]]:
        """Return the names of the stored fields of accounts, tokens and ledger lines."""
        account, token, line = set[str](), set[str](), set[str]()
        for name in self.accounts():
            account |= set(self.ask("HKEYS", f"gw:{{{name}}}:account"))
            for record in self.ask("HVALS", f"gw:{{{name}}}:tokens"):
                stored = json.loads(record)
                token |= {*stored, *(f"token.{field}" for field in stored["token"])}
            line |= {field for _, fields in self.ledger(name) for field in fields}
        return {"account": sorted(account), "token": sorted(token), "line": sorted(line)}


def pattern(key: str) -> str:
    """Return a key with `*` for each name in it."""
    key = REQUEST.sub("*", key)
    key = re.sub(r"^gw:\{channels\}:.*:", "gw:{channels}:*:", key)
    return re.sub(r"^gw:\{(?!channels\}|usage\})[a-z0-9]+\}", "gw:{*}", key)


async def money(folder: DataFolder) -> dict[str, Any]:
    """Return what the commands print about accounts and their books."""
    results: dict[str, Any] = {"accounts": await folder.run_json("account", "list", "--json")}
    archived = {"verify with the archive": ("--archive", "archive")} if folder.archive.exists() else {}
    for name, more in ({"verify": ()} | archived).items():
        (report,) = await folder.run_json("verify", "--json", *more)
        for kind in ("expired", "stale"):
            report[kind] = sorted([each["account"], *REQUEST.findall(each["what"])] for each in report[kind])
        del report["notes"]
        results[name] = report
    return results


async def usage(folder: DataFolder) -> dict[str, Any]:
    """Return what the commands print of the usage log up to `LAST_DAY`: records by id, and sums of requests that ended."""
    summary = ("usage", "summary", "--by", "account,token,model,channel,day", "--to", LAST_DAY, "--json")
    exported, totals = await asyncio.gather(folder.run_json("usage", "export"), folder.run_json(*summary))
    records = {record["id"]: record for record in exported if record["arrived_at"][:10] <= LAST_DAY}
    assert len(records) == sum(record["arrived_at"][:10] <= LAST_DAY for record in exported), "a request is there twice"
    return {"records": records, "summary": [total for total in totals if total["token_id"] or not total["account"]]}


async def state(folder: DataFolder, accounts: list[str]) -> dict[str, Any]:
    """Return what the commands print about channels and tokens."""
    results: dict[str, Any] = {"channels": await folder.run_json("channels", "--json"), "tokens": {}}
    for account in accounts:
        results["tokens"][account] = await folder.run_json("token", "list", account, "--json")
    return results


def use_up_limits(store: Raw, at_s: int) -> None:
    """Write limits that are used up at a time in seconds since 1970: the store drops such keys some time after it."""
    at_ms = at_s * 1000
    at_us = (at_ms + LEASE_MS) * 1000  # a level of a time ahead drains from the first look on
    store.ask("SET", "gw:{grace}:limits:rate-limit:rates", f"{1000 * 60_000_000} {at_us} 0 0")
    store.ask("SET", "gw:{ivan}:limits:rate-limit:rates", f"0 0 {1_000_000 * 60_000_000} {at_us}")
    request = "0199f000-0000-7000-8000-00000000000{}"
    store.ask("ZADD", "gw:{heidi}:limits:rate-limit:slots", at_ms + LEASE_MS, request.format(1))
    store.ask("ZADD", "gw:{channels}:narrow:slots", at_ms + LEASE_MS, request.format(2))
    for number in range(3, 8):
        store.ask("ZADD", "gw:{channels}:minute:calls", at_ms, request.format(number))
    for key in ("gw:{heidi}:limits:rate-limit:slots", "gw:{channels}:narrow:slots", "gw:{channels}:minute:calls"):
        store.ask("PERSIST", key)
