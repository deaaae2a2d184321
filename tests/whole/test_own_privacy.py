"""Whatever a caller asks about itself, and however, the answer is made of its own account's data alone.

Every answer is compared with one that is computed from what the account itself has: a record, a sum or a line of another would
differ, and so would anything that depends on another's.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway import Outcome, Record, hashed_reference
from gateway.fake_upstream import FakeUpstream
from gateway.testing import Running, running
from tests.records import COSTED, arrival, end, id_at, usage_database
from tests.whole.conftest import configuration
from tests.whole.raw import Answer, ask, head

NOW: Final = datetime.now(UTC)
MODELS: Final = ("words", "shared/model:1")
REFERENCES: Final = ("", "same reference", "other")
HIDDEN: Final = {
    *("channel", "attempts", "upstream_request_id", "upstream_usage", "cost_micros", "margin_micros", "cost_price"),
    *("upstream_cost_micros", "reference", "unavailable", "gateway", "changed_by", "answered_by"),
    *("completion_id", "address", "user_agent", "tags"),
}
SUMS: Final = (
    *("prompt_tokens", "cached_tokens", "cache_write_tokens", "completion_tokens", "charge_micros"),
    *("requests", "completed"),
)
FORGED: Final = ("ffffffff-ffff-7fff-bfff-ffffffffffff", "00000000-0000-7000-8000-000000000000", "0-1", "1-0", "x")


def records_of(account: str) -> list[Record]:
    """Return requests of some months, of which those of two accounts lie between each other."""
    found = []
    for number in range(24):
        moment = NOW - timedelta(days=3 * number, seconds=len(account))
        reference = REFERENCES[number % 3]
        changes: dict[str, Any] = {
            "account": account,
            "token_id": f"{account}-1a2b3c4d" if account else "",
            "model": MODELS[number % 2],
            "outcome": list(Outcome)[number % 4],
            "reference": hashed_reference(account, reference) if account and reference else "",
            "charge_micros": number + (1000 if account == "alice" else 1),
        }
        found.append(end(arrival(id_at(round(moment.timestamp() * 1000))), **COSTED, **changes))
    return found


class World:
    """A gateway with requests and ledgers of two accounts, and requests of none."""

    def __init__(self, gateway: Running, tokens: dict[str, str], records: dict[str, list[Record]]) -> None:
        self.gateway = gateway
        self.tokens = tokens
        self.records = records
        self.ledgers: dict[str, list[dict[str, Any]]] = {}
        self.cursors = [*FORGED, *(each.id for own in records.values() for each in own[::5])]

    async def ask(self, account: str, path: str, **headers: str) -> Answer:
        lines = {"Host": "gateway", "Authorization": f"Bearer {self.tokens[account]}"}
        return await ask(self.gateway.port, head("GET", path, lines | headers))

    async def prepare(self) -> None:
        """Book lines for both accounts in turn, and note what each ledger has."""
        for number in range(6):
            for account in self.tokens:
                await self.gateway.store.wallet.credit(account, f"{account}-top-up-{number}", number + len(account))
        for account in self.tokens:
            self.ledgers[account] = json.loads((await self.ask(account, "/v1/account/ledger?limit=100")).body)["data"]
            transactions = [line["transaction"] for line in self.ledgers[account]]
            assert transactions == [*(f"{account}-top-up-{number}" for number in range(5, -1, -1)), "opening"]
            self.cursors += [line["id"] for line in self.ledgers[account]]


def write(folder: Path, records: dict[str, list[Record]]) -> None:
    database = usage_database(folder)
    database.write(each for own in records.values() for each in own)
    database.close()


@pytest.fixture
async def world(upstream: FakeUpstream, store_url: str, tmp_path: Path) -> AsyncIterator[World]:
    yaml = configuration(upstream.base_url).replace("requests_per_minute: 1000", "requests_per_minute: 1000000")
    async with running(yaml, tmp_path, store_url) as gateway:
        records = {account: records_of(account) for account in ("alice", "bob", "")}
        await asyncio.to_thread(write, gateway.store.usage.folder, records)
        world = World(gateway, {account: await gateway.token(account) for account in ("alice", "bob")}, records)
        await world.prepare()
        yield world


NAMES: Final = (
    "limit",
    "after",
    "model",
    "outcome",
    "reference",
    "operation",
    "by",
    "from",
    "to",
    "account",
    "token_id",
    "id",
)
DAYS: Final = [f"{NOW - timedelta(days=days):%Y-%m-%d}" for days in (0, 3, 40)]
VALUES: Final = st.sampled_from(
    [
        *("1", "5", "100", "0", "-1", "alice", "bob", "bob-1a2b3c4d", "", "*", "%", "' OR 1=1 --", "\0", "\u00e9"),
        *(*MODELS, *REFERENCES, *list(Outcome)[:4], *DAYS, "day", "day,model", "model,token", "token", "account"),
        *("chat.completions", "ledger"),
    ]
)


def encoded(text: str, how: int) -> str:
    """Return a text as it is as far as a request line allows, or with every character encoded, or only its letters."""
    kept = "" if how == 1 else "-_.,:/*'()=" if how == 2 else "abcdefghijklmnopqrstuvwxyz0123456789-_.,:/*'()"
    return "".join(letter if letter in kept else "".join(f"%{byte:02X}" for byte in letter.encode()) for letter in text)


@st.composite
def queries(draw: st.DrawFn, cursors: list[str], names: tuple[str, ...]) -> str:
    pairs = []
    for _ in range(draw(st.integers(0, 3))):
        name = draw(st.sampled_from(names if draw(st.integers(0, 4)) else NAMES))
        value = draw(st.sampled_from(cursors)) if name == "after" else draw(VALUES)
        pairs.append(f"{encoded(name, draw(st.integers(0, 2)))}={encoded(value, draw(st.integers(0, 2)))}")
    return "&".join(pairs)


HEADERS: Final = st.sampled_from([{}, {"X-Account": "bob"}, {"X-Client-Request-Id": "same reference"}])
PROPERTY: Final = settings(
    max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], database=None
)


def given_once(query: str) -> dict[str, str] | None:
    """Return the parameters of a query; None where one is there twice."""
    pairs = parse_qsl(query, keep_blank_values=True)
    return dict(pairs) if len(dict(pairs)) == len(pairs) else None


def shown(record: Record) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(record)
    return {name: value for name, value in fields.items() if name not in HIDDEN}


@PROPERTY
@given(data=st.data(), headers=HEADERS)
async def test_requests(world: World, data: st.DataObject, headers: dict[str, str]) -> None:
    account = data.draw(st.sampled_from(["alice", "bob"]))
    query = data.draw(queries(world.cursors, ("limit", "after", "model", "outcome", "reference")))
    answer = await world.ask(account, f"/v1/requests?{query}", **headers)
    given = given_once(query)
    if answer.status == 400:
        assert not others(account, answer.body) - set(parse_others(account, query))
        return
    assert answer.status == 200
    assert given is not None
    assert given.keys() <= {"limit", "after", "model", "outcome", "operation", "reference"}
    own = sorted(world.records[account], key=lambda each: each.id, reverse=True)
    wanted = [
        shown(each)
        for each in own
        if each.id < given.get("after", "g")
        and given.get("model", each.model) == each.model
        and given.get("outcome", each.outcome) == each.outcome
        and given.get("operation", each.operation) == each.operation
        and ("reference" not in given or each.reference == hashed_reference(account, given["reference"]))
    ]
    limit = int(given.get("limit", "20"))
    found = json.loads(answer.body)
    assert found["data"] == wanted[:limit]
    assert found["has_more"] == (len(wanted) > limit)
    assert others(account, answer.body) == set()


@PROPERTY
@given(data=st.data(), headers=HEADERS)
async def test_ledgers(world: World, data: st.DataObject, headers: dict[str, str]) -> None:
    account = data.draw(st.sampled_from(["alice", "bob"]))
    query = data.draw(queries(world.cursors, ("limit", "after")))
    answer = await world.ask(account, f"/v1/account/ledger?{query}", **headers)
    if answer.status == 400:
        assert not others(account, answer.body) - set(parse_others(account, query))
        return
    given = given_once(query)
    assert answer.status == 200
    assert given is not None
    after = place(given["after"]) if "after" in given else (2**63, 0)
    wanted = [line for line in world.ledgers[account] if place(line["id"]) < after]
    assert json.loads(answer.body)["data"] == wanted[: int(given.get("limit", "20"))]


def place(line: str) -> tuple[int, int]:
    ms, _, number = line.partition("-")
    return int(ms), int(number)


@PROPERTY
@given(data=st.data(), headers=HEADERS)
async def test_use(world: World, data: st.DataObject, headers: dict[str, str]) -> None:
    account = data.draw(st.sampled_from(["alice", "bob"]))
    query = data.draw(queries(world.cursors, ("by", "from", "to")))
    answer = await world.ask(account, f"/v1/usage?{query}", **headers)
    if answer.status == 400:
        assert not others(account, answer.body) - set(parse_others(account, query))
        return
    given = given_once(query)
    assert answer.status == 200
    assert given is not None
    last = given.get("to", DAYS[0])
    first = given.get("from", f"{datetime.fromisoformat(last) - timedelta(days=29):%Y-%m-%d}")
    groups = [{"token": "token_id"}.get(name, name) for name in given.get("by", "day").split(",")]
    totals: defaultdict[tuple[str, ...], dict[str, int]] = defaultdict(lambda: dict.fromkeys(SUMS, 0))
    for each in world.records[account]:
        day = each.arrived_at[:10]
        if first <= day <= last:
            total = totals[tuple(day if name == "day" else getattr(each, name) for name in groups)]
            for name in SUMS[:-2]:
                total[name] += getattr(each, name)
            total["requests"] += 1
            total["completed"] += each.outcome is Outcome.COMPLETED
    found = json.loads(answer.body)
    assert found["data"] == [dict(zip(groups, key, strict=True)) | totals[key] for key in sorted(totals)]
    assert others(account, answer.body) == set()


async def test_a_record_of_another_account_or_of_none_is_not_found_by_any_spelling(world: World) -> None:
    for record in (world.records["bob"][0], world.records[""][0]):
        for name in (record.id, encoded(record.id, 1), record.id.upper(), f"{record.id}/", f"{record.id}%00"):
            for query in ("", "?account=bob", "?account=", "?reference=same%20reference"):
                answer = await world.ask("alice", f"/v1/requests/{name}{query}", **{"X-Account": "bob"})
                assert (answer.status, answer.error["code"]) == (404, "request_not_found"), name
    own = world.records["alice"][0]
    answer = await world.ask("alice", f"/v1/requests/{own.id}?account=bob")
    assert json.loads(answer.body) == shown(own)


def others(account: str, body: bytes) -> set[str]:
    """Return the name of the other account, if it is in an answer."""
    return {name for name in ("alice", "bob") if name != account and name.encode() in body}


def parse_others(account: str, query: str) -> list[str]:
    """Return the name of the other account, if it is in a query."""
    return [
        name for pair in parse_qsl(query, keep_blank_values=True) for name in others(account, "=".join(pair).encode())
    ]
