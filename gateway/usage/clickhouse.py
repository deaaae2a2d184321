"""The copy of the usage log in ClickHouse, for queries about more than the home keeps.

1. **Requests are copied from the home**, in the order in which their ends became known, starting where the last copy
   stopped: a ClickHouse that was away for a day is a day late, and neither requests nor the log wait for it.
2. **A record that is sent twice is one request**: the table keeps one row for each id, and a presumed end
   (`gateway_crashed`) is replaced by the actual one.
3. **The credential is sent in headers**, never in a URL, a log line or an error.
4. **One gateway at a time copies from a database that several share**: the one that holds a lock there. It has the position.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import msgspec
from aiohttp import ClientError, ClientSession, ClientTimeout

from gateway.base.errors import GatewayError, StoreAway
from gateway.base.ids import is_request_id
from gateway.base.log import log
from gateway.config.schema import Config
from gateway.domain.exchange import Outcome
from gateway.usage import queries
from gateway.usage.database import COLUMNS, GROUP_COLUMNS, GROUPS, JSON_COLUMNS, SUM_COLUMNS
from gateway.usage.home import Home, home_of
from gateway.usage.record import NUMBERS_OR_NONE, Record

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

LOCK: Final = 0x636C6963
"""The number of the lock of the database under which it is copied."""


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
        if not is_request_id(id):
            return None
        try:
            line = await self.execute(FIND, id=id)
        except GatewayError as error:
            raise StoreAway(f"the requests in ClickHouse cannot be looked up: {error}") from None
        return _decode(line) if line else None


class Copier:
    """Copies requests that ended from a home to ClickHouse. The position is in a file of the folder, or in the database."""

    def __init__(self, database: ClickHouse, home: Home) -> None:
        self._database = database
        self._home = home
        self._prepared = False

    async def copy_batch(self) -> int:
        """Copy one batch; return its size. Raises `GatewayError` and `OSError`: then the next call copies it again."""
        if not self._prepared:
            await self._database.create_tables()
            self._prepared = True
        with self._home.alone(LOCK) as alone:
            return await self._copy() if alone else 0

    async def _copy(self) -> int:
        cursor = await asyncio.to_thread(self._home.copied)
        try:
            tail = queries.Tail(self._home, cursor or queries.START)
        except ValueError:
            log.error("clickhouse_place_damaged", instead="all is copied again, each request once")
            tail = queries.Tail(self._home, queries.START)
        ended = await asyncio.to_thread(tail.poll, BATCH)
        if ended:
            await self._database.insert([record for _, record in ended])
            await asyncio.to_thread(self._home.copied, tail.cursor)
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


async def run(config: Config, stop: asyncio.Event) -> None:
    """Copy to the configuration's ClickHouse until `stop` is set."""
    await Copier(ClickHouse(config.usage.clickhouse), home_of(config)).run(stop)
