"""The copy of the usage log in ClickHouse, for queries about more than the files keep.

1. **Requests are copied from the files**, in the order in which their ends became known, starting where the last copy
   stopped: a ClickHouse that was away for a day is a day late, and neither requests nor the log wait for it.
2. **A record that is sent twice is one request**: the table keeps one row for each id, and a presumed end
   (`gateway_crashed`) is replaced by the actual one.
3. **The credential is sent in headers**, never in a URL, a log line or an error.

One gateway of a store copies at a time (`SharedCopier`), since each has the records of all:

4. **The one that has the lease copies**; when it ends, another takes it within seconds. What both sent is one request.
5. **Nothing is missed**: the one that copies says up to which entry of the stream all is copied, and only then do the others
   skip what they knew by then. A gateway that misses entries leaves the copying to one that has them.
6. **What a gateway had before it shared a log** is in its files alone: it copies that by itself, whoever has the lease.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import msgspec
from aiohttp import ClientError, ClientSession, ClientTimeout

from gateway.base import durable
from gateway.base.errors import GatewayError, StoreAway
from gateway.base.log import log
from gateway.config.schema import Config
from gateway.domain.exchange import Outcome
from gateway.store.client.client import Client, Script
from gateway.usage import gaps, queries
from gateway.usage.database import COLUMNS, GROUP_COLUMNS, GROUPS, JSON_COLUMNS, SUM_COLUMNS
from gateway.usage.gaps import is_before, ms_of
from gateway.usage.record import NUMBERS_OR_NONE, Record
from gateway.usage.replication import FIRST, gateways_of, position_of
from gateway.usage.stream import COPIED, COPIER, STREAM, Spool, installation_of

TABLE: Final = "sluicegate_requests"
VIEW: Final = "sluicegate_days"
BATCH: Final = 5000
POLL_S: Final = 1.0
RETRY_S: Final = 5.0

_TYPES: Final = {
    "arrived_at": "DateTime64(3, 'UTC')",
    **dict.fromkeys(NUMBERS_OR_NONE, "Nullable(Int64)"),
    **dict.fromkeys(("operation", "group", "model", "channel", "outcome", "error_code"), "LowCardinality(String)"),
    **dict.fromkeys(("refused_by", "usage_source"), "LowCardinality(String)"),
}

_NAMES: Final = ", ".join(f"`{column}`" for column in COLUMNS)
CREATE_VIEW: Final = (
    f"CREATE VIEW IF NOT EXISTS {VIEW} AS SELECT toDate(arrived_at) AS day, {', '.join(GROUP_COLUMNS)}, "  # noqa: S608
    + f"count() AS requests, countIf(outcome = '{Outcome.COMPLETED}') AS completed, "
    + "".join(f"ifNull(sum({TABLE}.{name}), 0) AS {name}, " for name in SUM_COLUMNS)
    + f"countIf({TABLE}.cost_micros IS NULL) AS unknown_costs FROM {TABLE} FINAL GROUP BY {', '.join(GROUPS)}"
)
"""The view that sums the table by day."""
PRESENT: Final = f"SELECT * FROM {TABLE} LIMIT 0 FORMAT TSVWithNames"  # noqa: S608
"""The names of the columns that the table has."""

FIND: Final = f"SELECT {_NAMES} FROM {TABLE} FINAL WHERE id = {{id:String}} FORMAT JSONEachRow"  # noqa: S608
INSERT: Final = f"INSERT INTO {TABLE} ({_NAMES}) FORMAT JSONEachRow"

_ID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

LEASE_MS: Final = 10_000
MARK: Final = "clickhouse.shared"

_TAKE: Final = Script(
    "take_lease",
    """
local holder = redis.call("GET", KEYS[1])
if holder and holder ~= ARGV[1] then return 0 end
redis.call("SET", KEYS[1], ARGV[1], "PX", ARGV[2])
return 1
""",
)
_SAY: Final = Script(
    "say_copied", 'if redis.call("GET", KEYS[1]) == ARGV[1] then redis.call("SET", KEYS[2], ARGV[2]) end return 0'
)


def _type(column: str) -> str:
    default = getattr(Record(id="", arrived_at=""), column)
    return _TYPES.get(column, "Int64" if isinstance(default, int) else "String")

CREATE_TABLE: Final = (
    f"CREATE TABLE IF NOT EXISTS {TABLE} ("
    + "".join(f"`{column}` {_type(column)}, " for column in COLUMNS)
    + f"certain UInt8 MATERIALIZED outcome != '{Outcome.GATEWAY_CRASHED}', "
    + "INDEX of_account account TYPE bloom_filter GRANULARITY 4"
    + ") ENGINE = ReplacingMergeTree(certain) PARTITION BY toYYYYMM(arrived_at) ORDER BY id"
)
"""The table, with a row for each request."""


class ClickHouse:
    """A database of a ClickHouse server, reached over HTTP: `https://user:password@host:8443/database`."""

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

    async def execute(self, statement: str, data: bytes = b"", **values: str) -> bytes:
        """Return the result of a statement; each `{name:Type}` in it is replaced by one of `values`.

        Raises `GatewayError` with the first line of the server's reason.
        """
        params = {"query": statement, "output_format_json_quote_64bit_integers": "0"}
        params |= {f"param_{name}": value for name, value in values.items()}
        try:
            async with (
                ClientSession(timeout=self._timeout, headers=self._headers) as client,
                client.post(self._url, params=params, data=data) as response,
            ):
                result = await response.read()
        except (ClientError, TimeoutError, OSError) as error:
            raise GatewayError(f"ClickHouse cannot be reached: {type(error).__name__}") from None
        if response.status != 200:
            reason, _, _ = result[:300].decode("utf-8", "replace").partition("\n")
            raise GatewayError(f"ClickHouse refused ({response.status}): {reason}")
        return result

    async def create_tables(self) -> None:
        """Create the table and the view where they are missing. Raises `GatewayError`, also for a table with other columns."""
        await self.execute(CREATE_TABLE)
        present = (await self.execute(PRESENT)).decode().split()
        if present and not {*COLUMNS} <= {*present}:
            raise GatewayError(
                f"the table {TABLE} in ClickHouse is of another version of the gateway: rename it, and drop the view {VIEW}"
            )
        await self.execute(CREATE_VIEW)

    async def insert(self, records: list[Record]) -> None:
        """Insert requests that ended, each any number of times. Raises `GatewayError`; then insert them again."""
        await self.execute(INSERT, b"\n".join(map(_encode, records)))

    async def find(self, id: str) -> Record | None:  # noqa: A002 - the field's name
        """Return the record of a request that ended on any machine, or None. Raises `StoreAway`."""
        if not _ID.fullmatch(id):
            return None
        try:
            line = await self.execute(FIND, id=id)
        except GatewayError as error:
            raise StoreAway(f"the requests in ClickHouse cannot be looked up: {error}") from None
        return _decode(line) if line else None


class Copier:
    """Copies requests that ended from a folder's files to ClickHouse; a file in the folder holds its position."""

    def __init__(self, database: ClickHouse, folder: Path) -> None:
        self._database = database
        self._position = folder / "clickhouse.place"
        self._folder = folder
        self._prepared = False

    async def copy_batch(self) -> int:
        """Copy one batch; return its size. Raises `GatewayError` and `OSError`: then the next call copies it again."""
        if not self._prepared:
            await self._database.create_tables()
            self._prepared = True
        cursor = self._position.read_bytes().decode(errors="replace") if self._position.exists() else queries.START
        try:
            tail = queries.Tail(self._folder, cursor)
        except ValueError:
            log.error(
                "clickhouse_place_damaged", file=str(self._position), instead="all is copied again, each request once"
            )
            tail = queries.Tail(self._folder, queries.START)
        ended = await asyncio.to_thread(tail.poll, BATCH)
        if ended:
            await self._database.insert([record for _, record in ended])
            await asyncio.to_thread(durable.write, self._position, tail.cursor.encode())
        return len(ended)

    async def run(self, stop: asyncio.Event) -> None:
        """Copy what ends until `stop` is set."""
        failing = False
        while not stop.is_set():
            pause_s = POLL_S
            try:
                if await self.copy_batch():
                    pause_s = 0
                if failing:
                    log.warning("clickhouse_goes_on")
                failing = False
            except (GatewayError, OSError) as error:
                if not failing:
                    log.error("clickhouse_waits", reason=str(error))
                failing, pause_s = True, RETRY_S
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), pause_s)


def _encode(record: Record) -> bytes:
    values: dict[str, Any] = msgspec.to_builtins(record)
    for name in JSON_COLUMNS:
        values[name] = msgspec.json.encode(values[name]).decode()
    values["arrived_at"] = record.arrived_at.replace("T", " ").removesuffix("Z")
    return msgspec.json.encode(values)


def _decode(line: bytes) -> Record:
    values = msgspec.json.decode(line)
    for name in JSON_COLUMNS:
        values[name] = msgspec.json.decode(values[name])
    values["arrived_at"] = values["arrived_at"].replace(" ", "T") + "Z"
    return msgspec.convert(values, Record)


class SharedCopier(Copier):
    """Copies in turn with the other gateways of the store."""

    def __init__(self, database: ClickHouse, folder: Path, client: Client) -> None:
        super().__init__(database, folder)
        self._client = client
        self._installation = installation_of(folder)
        self._mark = folder / MARK
        self._known: tuple[str, str] | None = None
        """A place in the files, and an entry of the stream before which all that is up to there was written."""

    async def copy_batch(self) -> int:
        """Copy one batch if it is this gateway's turn; return its size. Raises `GatewayError` and `OSError`."""
        through = await position_of(self._client, self._installation)
        if not self._mark.exists():
            copied = await super().copy_batch()
            if not copied and through is not None:
                await asyncio.to_thread(durable.write, self._mark, b"")
            return copied
        done = (await self._client.call("GET", COPIED) or FIRST.encode()).decode()
        misses = self._misses(gaps.load(self._folder).gaps, done)
        if misses and await self._another_has_all(done):
            return await self._skip(done)
        if not await self._client.run(_TAKE, [COPIER], [self._installation, LEASE_MS]):
            return await self._skip(done)
        copied = await super().copy_batch()
        if not copied and through is not None and not misses and is_before(done, through):
            await self._client.run(_SAY, [COPIER, COPIED], [self._installation, through])
        return copied

    async def _another_has_all(self, done: str) -> bool:
        others = [each for each in await gateways_of(self._client) if each.installation != self._installation]
        return any(each.present and not self._misses(each.about.gaps, done) for each in others)

    async def _skip(self, done: str) -> int:
        """Move this gateway's place to where another one has copied all that is known here."""
        if self._known is not None and not is_before(done, self._known[1]):
            await asyncio.to_thread(durable.write, self._position, self._known[0].encode())
            self._known = None
        if self._known is None:
            place = (await asyncio.to_thread(queries.Tail, self._folder)).cursor
            if not Spool(self._folder / "spool").count():
                last = (await self._client.call("XINFO", "STREAM", STREAM))[b"last-generated-id"]
                self._known = place, last.decode()
        return 0

    @staticmethod
    def _misses(known: list[gaps.Gap], done: str) -> bool:
        """Return whether there is a gap in what is not copied yet."""
        return any(gap.last_ms > ms_of(done) for gap in known)


async def run(config: Config, url: str, stop: asyncio.Event) -> None:
    """Copy to the configuration's ClickHouse until `stop` is set."""
    client = Client.connect(url, timeout_s=5, connections=1)
    try:
        await SharedCopier(ClickHouse(config.usage.clickhouse), config.data_path / "usage", client).run(stop)
    finally:
        await client.close()
