"""Questions to a database of 10,000,000 records of 10,000 accounts: `python -m tests.bench.large_log [RECORDS]`.

The records are of three months, made by the server itself. Each question is asked for 300 accounts or requests drawn by chance; its
median and 99th percentile are printed, with the plan of each kind of list. The figures depend on the machine; nothing is a test.
"""

from __future__ import annotations

import platform
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gateway.base.ids import first_id
from gateway.domain.exchange import Outcome
from gateway.usage import postgres, queries
from gateway.usage.database import COLUMNS, GROUPS, SUM_COLUMNS, SUMS, record_of, row_of
from gateway.usage.home import postgres as opened
from gateway.usage.postgres import Postgres
from gateway.usage.queries import RequestsQuery, own_sums, page
from gateway.usage.record import NUMBERS, NUMBERS_OR_NONE, Record
from gateway.usage.sums import Order, Selected, totals
from tests.postgres import PostgresServer
from tests.records import COSTED, arrival, end

MONTHS = {"2026-08": 1_785_542_400_000, "2026-09": 1_788_220_800_000, "2026-10": 1_790_812_800_000}
DAYS = 30
ACCOUNTS = 10_000
MODELS = 4
TIMES = 300
MADE = {
    "id": "substr(h, 1, 8) || '-' || substr(h, 9, 4) || '-7' || substr(m, 1, 3)"
    " || '-8' || substr(m, 4, 3) || '-' || substr(m, 7, 12)",
    "arrived_at": "to_char(to_timestamp(ms / 1000.0) AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.MS\"Z\"')",
    "account": f"'acct' || (('x' || substr(m, 20, 6))::bit(24)::int % {ACCOUNTS})",
    "token_id": f"'acct' || (('x' || substr(m, 20, 6))::bit(24)::int % {ACCOUNTS}) || '-k3f9x2ab'",
    "model": f"'model-' || (('x' || substr(m, 26, 4))::bit(16)::int % {MODELS})",
    "outcome": "CASE WHEN m < '05' THEN 'refused' ELSE 'completed' END",
    "reference": "CASE WHEN m < '10' THEN m ELSE '' END",
}


def fill(home: Postgres, count: int) -> None:
    """Make the records of each month, then its indices, then its sums."""
    home.identity()
    sample = row_of(end(arrival(), gateway="0a1b2c3d", **COSTED))
    numbers = {*NUMBERS, *NUMBERS_OR_NONE}
    values = [
        MADE.get(name, str(value if value is not None else "NULL") if name in numbers else f"'{value}'")
        for name, value in zip(COLUMNS, sample, strict=True)
    ]
    for month, first_ms in MONTHS.items():
        suffix, each = month.replace("-", "_"), count // len(MONTHS)
        step_ms = DAYS * 86_400_000 / each
        made = f"SELECT {first_ms} + (i * {step_ms})::bigint AS ms, md5(i || '{month}') AS m FROM generate_series(0, {each - 1}) i"
        with home._transaction("BEGIN") as connection:
            connection.execute("SET LOCAL maintenance_work_mem = '512MB'; SET LOCAL work_mem = '256MB'")
            connection.execute(f"CREATE TABLE sluicegate.requests_{suffix} ({postgres._INCOMING})")
            connection.execute(
                f"INSERT INTO sluicegate.requests_{suffix} SELECT {', '.join(values)} "
                f"FROM (SELECT *, lpad(to_hex(ms), 12, '0') AS h FROM ({made}) a) b"
            )
            connection.execute(f"ALTER TABLE sluicegate.requests_{suffix} ADD PRIMARY KEY (id)")
            connection.execute(postgres._of_month(postgres.Tables(connection, month)))
            sums = ["count(*)", f"count(*) FILTER (WHERE outcome = '{Outcome.COMPLETED}')"]
            sums += [
                *(f"sum(coalesce({name}, 0))" for name in SUM_COLUMNS),
                "count(*) FILTER (WHERE cost_micros IS NULL)",
            ]
            assert len(sums) == len(SUMS)
            connection.execute(
                f"INSERT INTO sluicegate.days_{suffix} "
                f"SELECT substr(arrived_at, 1, 10), {', '.join(GROUPS[1:])}, {', '.join(sums)} "
                f"FROM sluicegate.requests_{suffix} GROUP BY substr(arrived_at, 1, 10), {', '.join(GROUPS[1:])}"
            )
            connection.execute("INSERT INTO sluicegate.months VALUES (%s)", (month,))
            postgres._make_view(connection)
        with (
            home._ran(f"VACUUM ANALYZE sluicegate.requests_{suffix}"),
            home._ran(f"VACUUM ANALYZE sluicegate.days_{suffix}"),
        ):
            print(month, "is there", flush=True)


def timed(name: str, work: Callable[[], Any]) -> None:
    took = []
    for _ in range(TIMES):
        began = time.perf_counter()
        work()
        took.append(1000 * (time.perf_counter() - began))
    took.sort()
    print(f"{name:60} median {took[len(took) // 2]:7.1f} ms, p99 {took[int(0.99 * len(took))]:7.1f} ms", flush=True)


def ask(home: Postgres) -> None:
    chance = random.Random(1)
    found: list[Record] = []
    for month, first_ms in MONTHS.items():
        with home.opened(month) as part:
            assert part is not None
            for _ in range(20):
                drawn = first_id(first_ms + chance.randrange(DAYS * 86_000_000))
                rows = queries.select_rows(part, "WHERE id >= ? ORDER BY id LIMIT 10", (drawn,))
                found += map(record_of, rows)

    def account() -> str:
        return f"acct{chance.randrange(ACCOUNTS)}"

    timed("one request", lambda: queries.find(home, chance.choice(found).id))
    timed("an account's newest 20", lambda: page(home, RequestsQuery(account()), 20, []))
    timed("an account's refused ones", lambda: page(home, RequestsQuery(account(), outcome=Outcome.REFUSED), 20, []))
    timed(
        "an account's, deep in the list",
        lambda: page(home, RequestsQuery(account(), after=chance.choice(found).id), 20, []),
    )
    named = [record for record in found if record.reference]
    timed(
        "by reference",
        lambda: page(home, RequestsQuery((r := chance.choice(named)).account, reference=r.reference), 20, []),
    )
    timed("an account's sums of 30 days", lambda: own_sums(home, account(), ["day"], "2026-10-01", "2026-10-30", []))
    timed("the newest 100 of all", lambda: page(home, RequestsQuery(), 100, []))
    timed("an operator's list of an account", lambda: page(home, RequestsQuery(account=account()), 100, [], 10_000))
    day = Selected(since_ms=MONTHS["2026-10"], until_ms=MONTHS["2026-10"] + 86_400_000)
    timed("sums of a day by model", lambda: totals(home, ("model",), day, Order(10), []))
    timed("sums of all by month", lambda: totals(home, ("month",), Selected(), Order(10), []))
    for scope in ("account = 'acct7'", "reference = 'x' AND reference != '' AND account || '' = 'a'", "true"):
        text = (
            f"EXPLAIN SELECT id FROM sluicegate.requests_2026_10 WHERE {scope} AND id < 'g' ORDER BY id DESC LIMIT 20"
        )
        with home._ran(text) as plan:
            print(scope, *(line for (line,) in plan), sep="\n    ")


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000_000
    print(
        f"Python {platform.python_version()}, {platform.machine()}, {count:,} records, {ACCOUNTS:,} accounts",
        flush=True,
    )
    server = PostgresServer()
    try:
        with tempfile.TemporaryDirectory() as folder:
            home = opened(server.url, Path(folder))
            began = time.monotonic()
            fill(home, count)
            size = "SELECT sum(pg_total_relation_size(c.oid)), sum(pg_relation_size(c.oid)) FROM pg_class c JOIN pg_namespace n "
            with home._ran(f"{size} ON n.oid = relnamespace WHERE nspname = 'sluicegate' AND relkind = 'r'") as sizes:
                whole, rows = next(sizes)
            print(f"filled in {time.monotonic() - began:.0f} s")
            print(f"{whole / count:.0f} bytes a record, {rows / count:.0f} without indices")
            ask(home)
            home.close()
    finally:
        server.stop()


if __name__ == "__main__":
    main()
