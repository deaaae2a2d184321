"""A data folder that another version wrote, used only by what is promised to stay: commands, ports, YAML keys, Redis keys."""

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

from redis import Redis

from tests.cli.processes import all_ready, free_port
from tests.patience import PATIENCE_S

FIXTURE: Final = Path(__file__).parent.parent / "fixtures" / "data-95e8e78"
PORTS: Final = ("PUBLIC", "ADMIN", "GOOD", "SLOW", "BROKEN", "CUTTING", "STALLING", "ERRING")
SECRETS: Final = ("GATEWAY_PEPPER", "GATEWAY_ADMIN_TOKEN")
"""What the environment may not give: they are in the folder."""
LAST_DAY: Final = "2025-11-03"
"""Of the folder's records; what a test adds is of later days, whenever it runs."""
REQUEST: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class OldData:
    """The folder, its archive and its configuration in `folder`, and the gateway that uses them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.data, self.archive = folder, folder / "data", folder / "archive"
        self.ports = {name: free_port() for name in PORTS}
        own = {name: value for name, value in os.environ.items() if name not in SECRETS}
        self.environment = own | {f"{name}_PORT": str(port) for name, port in self.ports.items()}
        shutil.copy(FIXTURE / "gateway.yaml", folder)

    def unpack(self) -> None:
        """Put there what the old version left."""
        with tarfile.open(FIXTURE / "data.tar.gz") as packed:
            packed.extractall(self.folder, filter="data")

    async def tell(self, *arguments: str, code: int = 0) -> str:
        """What one command prints."""
        process = await self._started(*arguments, stderr=asyncio.subprocess.PIPE)
        out, err = await asyncio.wait_for(process.communicate(), PATIENCE_S)
        assert process.returncode == code, (arguments, out.decode(), err.decode())
        return out.decode()

    async def told(self, *arguments: str, code: int = 0) -> list[Any]:
        """The JSON lines that one command prints."""
        return [json.loads(line) for line in (await self.tell(*arguments, code=code)).splitlines()]

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[asyncio.subprocess.Process]:
        """`gateway serve`, ready; killed at the end where it still runs."""
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
        """`gateway fake-upstream` on the port of this name."""
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
        """The embedded store itself, while a gateway serves."""
        with Redis(unix_socket_path=str(self.data / "store.sock"), decode_responses=True) as redis:
            yield Raw(redis)

    async def settled(self) -> None:
        """Wait until nothing waits any more: no charge in the journal, no record in spool or stream, no hold."""
        with self.store() as store, suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                while self._waiting(store):
                    await asyncio.sleep(0.05)
            return
        with self.store() as store:
            raise AssertionError(f"still waiting: {self._waiting(store)}")

    def _waiting(self, store: Raw) -> list[object]:
        files = [*(self.data / "journal").glob("*.jsonl"), *(self.data / "usage" / "spool").glob("*.jsonl")]
        streams = [key for key in store.keys("gw:usage:*") if store.ask("XLEN", key)]
        return [*files, *streams, *store.keys("gw:{*}:holds")]

    async def _started(self, *arguments: str, stderr: int) -> asyncio.subprocess.Process:
        place = ("--config", "gateway.yaml") if arguments[0] != "fake-upstream" else ()
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "gateway", *arguments, *place),
            cwd=self.folder,
            env=self.environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=stderr,
        )


class Raw:
    """The store's keys as they are."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    def ask(self, *command: str | int) -> Any:
        """What it answers to one command."""
        return self._redis.execute_command(*command)  # type: ignore[no-untyped-call, unused-ignore]

    def keys(self, pattern: str = "*") -> list[str]:
        """All keys that match, sorted."""
        return sorted(self.ask("KEYS", pattern))

    def patterns(self, *, lasting: bool = False) -> dict[str, str]:
        """The kinds of keys that there are, and their types; `lasting`: only those that do not go by themselves."""
        keys = [key for key in self.keys() if not lasting or self.ask("TTL", key) == -1]
        return {pattern(key): str(self.ask("TYPE", key)) for key in keys}

    def accounts(self) -> list[str]:
        """The accounts' ids."""
        return [key[4:-9] for key in self.keys("gw:{*}:account")]

    def ledger(self, account: str) -> list[list[Any]]:
        """An account's lines: id and fields."""
        return [[line, fields] for line, fields in self.ask("XRANGE", f"gw:{{{account}}}:ledger", "-", "+")]

    def fields(self) -> dict[str, list[str]]:
        """The names inside of what is kept of accounts, tokens and lines of ledgers."""
        account, token, line = set[str](), set[str](), set[str]()
        for name in self.accounts():
            account |= set(self.ask("HKEYS", f"gw:{{{name}}}:account"))
            for record in self.ask("HVALS", f"gw:{{{name}}}:tokens"):
                kept = json.loads(record)
                token |= {*kept, *(f"token.{field}" for field in kept["token"])}
            line |= {field for _, fields in self.ledger(name) for field in fields}
        return {"account": sorted(account), "token": sorted(token), "line": sorted(line)}


def pattern(key: str) -> str:
    """A key with `*` for each name in it."""
    key = REQUEST.sub("*", key)
    key = re.sub(r"^gw:\{channels\}:.*:", "gw:{channels}:*:", key)
    key = re.sub(r"^gw:\{(?!channels\})[a-z0-9]+\}", "gw:{*}", key)
    return re.sub(r"^gw:usage:[0-9a-f]{32}$", "gw:usage:*", key)


async def money(old: OldData) -> dict[str, Any]:
    """What the commands tell of accounts and their books."""
    found: dict[str, Any] = {"accounts": await old.told("account", "list", "--json")}
    for name, more in (("verify", ()), ("verify with the archive", ("--archive", "archive"))):
        (report,) = await old.told("verify", "--json", *more)
        for kind in ("expired", "stale"):
            report[kind] = sorted([each["account"], *REQUEST.findall(each["what"])] for each in report[kind])
        del report["notes"]
        found[name] = report
    return found


async def usage(old: OldData) -> dict[str, Any]:
    """What the commands tell of the usage log up to the folder's last day, by id; without sums of what never ended."""
    summary = ("usage", "summary", "--by", "account,token,model,channel,day", "--to", LAST_DAY, "--json")
    exported, totals = await asyncio.gather(old.told("usage", "export"), old.told(*summary))
    records = {record["id"]: record for record in exported if record["arrived_at"][:10] <= LAST_DAY}
    assert len(records) == sum(record["arrived_at"][:10] <= LAST_DAY for record in exported), "a request is there twice"
    return {"records": records, "summary": [total for total in totals if total["token_id"] or not total["account"]]}


async def state(old: OldData, accounts: list[str]) -> dict[str, Any]:
    """What else the commands tell."""
    found: dict[str, Any] = {"channels": await old.told("channels", "--json"), "tokens": {}}
    for account in accounts:
        found["tokens"][account] = await old.told("token", "list", account, "--json")
    return found
