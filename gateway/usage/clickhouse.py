"""ClickHouse, for who runs more than one machine: each ended request is also kept there, for questions about all of them.

1. It is fed from the files, in the order in which ends became known, and goes on from where it was: ClickHouse away for a
   day is a day late, and neither requests nor the log wait for it.
2. What is sent twice is one request: the table keeps one row for each id, and a guess (`gateway_crashed`) gives way to a
   true end.
3. The credential goes into headers, never into an address, a log line or an error.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import msgspec
import structlog
from aiohttp import ClientError, ClientSession, ClientTimeout

from gateway.config.schema import Config
from gateway.errors import GatewayError, StoreAway
from gateway.exchange import Outcome
from gateway.usage import queries
from gateway.usage.database import COLUMNS, GROUPS, JSON_COLUMNS, SUMS
from gateway.usage.record import Record

TABLE: Final = "sluicegate_requests"
VIEW: Final = "sluicegate_days"
BATCH: Final = 5000
POLL_S: Final = 1.0
TRY_AGAIN_S: Final = 5.0

KINDS: Final = {
    "arrived_at": "DateTime64(3, 'UTC')",
    "first_byte_ms": "Nullable(Int64)",
    **dict.fromkeys(("operation", "group", "model", "channel", "outcome", "error_code"), "LowCardinality(String)"),
    **dict.fromkeys(("refused_by", "usage_source"), "LowCardinality(String)"),
}


_NAMES: Final = ", ".join(f"`{column}`" for column in COLUMNS)


def _kind(column: str) -> str:
    default = getattr(Record(id="", arrived_at=""), column)
    return KINDS.get(column, "Int64" if isinstance(default, int) else "String")


STATEMENTS: Final = (
    f"CREATE TABLE IF NOT EXISTS {TABLE} ("
    + "".join(f"`{column}` {_kind(column)}, " for column in COLUMNS)
    + f"certain UInt8 MATERIALIZED outcome != '{Outcome.GATEWAY_CRASHED}', "
    + "INDEX of_account account TYPE bloom_filter GRANULARITY 4"
    + ") ENGINE = ReplacingMergeTree(certain) PARTITION BY toYYYYMM(arrived_at) ORDER BY id",
    f"CREATE VIEW IF NOT EXISTS {VIEW} AS SELECT toDate(arrived_at) AS day, {', '.join(GROUPS[1:])}, "  # noqa: S608
    + f"count() AS requests, countIf(outcome = '{Outcome.COMPLETED}') AS completed, "
    + ", ".join(f"sum({TABLE}.{name}) AS {name}" for name in SUMS[2:])
    + f" FROM {TABLE} FINAL GROUP BY {', '.join(GROUPS)}",
)
"""What is made where it is missing: a row for each request, and the roll-up by day as a view."""

FIND: Final = f"SELECT {_NAMES} FROM {TABLE} FINAL WHERE id = {{id:String}} FORMAT JSONEachRow"  # noqa: S608
INSERT: Final = f"INSERT INTO {TABLE} ({_NAMES}) FORMAT JSONEachRow"

_ID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

log = structlog.get_logger("gateway.usage.clickhouse")


class ClickHouse:
    """A database of a server, spoken to over HTTP: `https://user:password@host:8443/database`."""

    def __init__(self, url: str, *, timeout_s: float = 30) -> None:
        self._timeout = ClientTimeout(total=timeout_s)
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port else ""
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
        self._url = f"{parts.scheme}://{host}{port}/"
        self._headers = {
            "X-ClickHouse-User": unquote(parts.username or "default"),
            "X-ClickHouse-Key": unquote(parts.password or ""),
            "X-ClickHouse-Database": parts.path.strip("/") or "default",
        }

    async def run(self, statement: str, data: bytes = b"", **values: str) -> bytes:
        """The answer to a statement; `{name:Type}` in it is one of `values`.

        Raises `GatewayError` with the server's own reason, cut to a line.
        """
        asked = {"query": statement, "output_format_json_quote_64bit_integers": "0"}
        asked |= {f"param_{name}": value for name, value in values.items()}
        try:
            async with (
                ClientSession(timeout=self._timeout, headers=self._headers) as client,
                client.post(self._url, params=asked, data=data) as answer,
            ):
                text = await answer.read()
        except (ClientError, TimeoutError, OSError) as error:
            raise GatewayError(f"ClickHouse cannot be reached: {type(error).__name__}") from None
        if answer.status != 200:
            reason = text[:300].decode("utf-8", "replace").partition("\n")[0]
            raise GatewayError(f"ClickHouse refused ({answer.status}): {reason}")
        return text

    async def prepare(self) -> None:
        """Make the table and the view where they are missing. Raises `GatewayError`."""
        for statement in STATEMENTS:
            await self.run(statement)

    async def keep(self, records: list[Record]) -> None:
        """Insert ends, each any number of times. Raises `GatewayError`; then insert them again."""
        await self.run(INSERT, b"\n".join(map(_line, records)))

    async def find(self, id: str) -> Record | None:  # noqa: A002 - the field's name
        """The record of a request that ended, on whatever machine. Raises `StoreAway`."""
        if not _ID.fullmatch(id):
            return None
        try:
            line = await self.run(FIND, id=id)
        except GatewayError as error:
            raise StoreAway(f"the requests of other machines cannot be looked up: {error}") from None
        return _record(line) if line else None


class Copier:
    """Takes ends from a folder's files to ClickHouse, and remembers in the folder how far it has come."""

    def __init__(self, database: ClickHouse, folder: Path) -> None:
        self._database = database
        self._place = folder / "clickhouse.place"
        self._folder = folder
        self._prepared = False

    async def step(self) -> int:
        """Take one batch; how many it had. Raises `GatewayError` and `OSError`: then the next step takes it again."""
        if not self._prepared:
            await self._database.prepare()
            self._prepared = True
        place = self._place.read_text() if self._place.exists() else queries.NOWHERE
        tail = queries.Tail(self._folder, place)
        ended = await asyncio.to_thread(tail.poll, BATCH)
        if ended:
            await self._database.keep([record for _, record in ended])
            passing = self._place.with_suffix(".part")
            passing.write_text(tail.cursor)
            passing.rename(self._place)
        return len(ended)

    async def run(self, stop: asyncio.Event) -> None:
        """Take what comes until `stop` is set."""
        failing = False
        while not stop.is_set():
            pause_s = POLL_S
            try:
                if await self.step():
                    pause_s = 0
                if failing:
                    log.warning("clickhouse_goes_on")
                failing = False
            except (GatewayError, OSError) as error:
                if not failing:
                    log.error("clickhouse_waits", reason=str(error))
                failing, pause_s = True, TRY_AGAIN_S
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), pause_s)


async def run(config: Config, stop: asyncio.Event) -> None:
    """Copy to the configuration's ClickHouse until `stop` is set."""
    await Copier(ClickHouse(config.usage.clickhouse), config.data_path / "usage").run(stop)


def _line(record: Record) -> bytes:
    values: dict[str, Any] = msgspec.to_builtins(record)
    for name in JSON_COLUMNS:
        values[name] = msgspec.json.encode(values[name]).decode()
    values["arrived_at"] = record.arrived_at.replace("T", " ").removesuffix("Z")
    return msgspec.json.encode(values)


def _record(line: bytes) -> Record:
    values = msgspec.json.decode(line)
    for name in JSON_COLUMNS:
        values[name] = msgspec.json.decode(values[name])
    values["arrived_at"] = values["arrived_at"].replace(" ", "T") + "Z"
    return msgspec.convert(values, Record)
