"""What callers ask about themselves: lists of their requests, their use and their ledger, and never those of others."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from gateway import Outcome, hashed_reference
from gateway.fake_upstream import FakeUpstream
from gateway.testing import Running
from gateway.usage.record import Record
from tests.records import COSTED, arrival, end, id_at, usage_database, usage_sink
from tests.whole.conftest import Serve
from tests.whole.raw import Answer, ask, chat, get

NOW: Final = datetime.now(UTC)
README: Final = Path(__file__).parent.parent.parent / "gateway/docs/callers.md"
TODAY: Final = f"{NOW:%Y-%m-%d}"
OPERATORS: Final = {"channel", "attempts", "upstream_usage", "cost_micros", "margin_micros", "cost_price", "reference"}


def ago(**past: float) -> str:
    """Return the id of a request that arrived so long ago."""
    return id_at(round((NOW - timedelta(**past)).timestamp() * 1000))


def record(account: str, id_: str, **changes: Any) -> Record:
    return end(arrival(id_), account=account, token_id=f"{account}-1a2b3c4d", **{**COSTED, **changes})


async def write(gateway: Running, *records: Record) -> None:
    def into_files() -> None:
        database = usage_database(gateway.store.usage.folder)
        database.write(records)
        database.close()

    await asyncio.to_thread(into_files)


async def moved(gateway: Running) -> None:
    """Wait until the requests have ended, and move their records into the files."""
    await gateway.gateway.runner.wait_ended()
    sink = usage_sink(gateway.store.usage, retention_months=13, crashed_after_s=60)
    while await sink.move_batch():
        pass


async def fetch(gateway: Running, token: str, path: str) -> Answer:
    return await ask(gateway.port, get(path, token))


async def listed(gateway: Running, token: str, path: str) -> dict[str, Any]:
    answer = await fetch(gateway, token, path)
    assert answer.status == 200, answer.body
    found: dict[str, Any] = json.loads(answer.body)
    return found


async def ids(gateway: Running, token: str, query: str = "") -> list[str]:
    return [line["id"] for line in (await listed(gateway, token, f"/v1/requests{query}"))["data"]]


async def test_requests_are_listed_newest_first_page_by_page(gateway: Running) -> None:
    token = await gateway.token("alice")
    own = [record("alice", ago(days=days)) for days in (70, 40, 3, 2, 1)]
    await write(gateway, *own, record("bob", ago(days=1)), arrival(ago(hours=1)), record("", ago(hours=2)))
    seen, query = list[str](), "?limit=2"
    for _ in range(3):
        page = await listed(gateway, token, f"/v1/requests{query}")
        assert page["object"] == "list"
        assert page["notes"] == []
        assert (page["next"] is not None) == page["has_more"]
        seen += [line["id"] for line in page["data"]]
        query = f"?limit=2&after={page['next']}"
    assert seen == [each.id for each in reversed(own)]
    assert not page["has_more"]
    (line,) = page["data"]
    assert (line["account"], line["outcome"], line["charge_micros"]) == ("alice", "completed", 123)
    assert not OPERATORS & line.keys()


async def test_a_list_has_what_its_filters_select(gateway: Running) -> None:
    token = await gateway.token("alice")
    cut = record("alice", ago(hours=3), outcome=Outcome.CALLER_GONE)
    other = record("alice", ago(hours=2), model="org/model:free +x")
    both = record("alice", ago(hours=1), outcome=Outcome.CALLER_GONE, model="org/model:free +x")
    await write(gateway, cut, other, both)
    assert await ids(gateway, token, "?outcome=caller_gone") == [both.id, cut.id]
    assert await ids(gateway, token, "?model=org/model:free%20%2Bx") == [both.id, other.id]
    assert await ids(gateway, token, "?model=org%2Fmodel%3Afree+%2Bx&outcome=caller_gone") == [both.id]
    assert await ids(gateway, token, f"?outcome=caller_gone&after={both.id}") == [cut.id]
    assert await ids(gateway, token, "?model=nope") == []
    assert await ids(gateway, token, "?operation=chat.completions&limit=1") == [both.id]
    assert await ids(gateway, token, "?operation=account") == []


async def test_a_filter_that_few_requests_meet_ends_a_page_early(
    gateway: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.usage.queries.MAX_SCANNED", 3)
    token = await gateway.token("alice")
    own = [record("alice", ago(days=days), model="m" if days == 40 else "n") for days in (50, 40, 39, 4, 3, 2, 1)]
    await write(gateway, *own)
    query, pages, found = "?model=m", 0, list[str]()
    while query:
        page = await listed(gateway, token, f"/v1/requests{query}")
        found += [line["id"] for line in page["data"]]
        query = f"?model=m&after={page['next']}" if page["has_more"] else ""
        pages += 1
    assert found == [own[1].id]
    assert pages == 3


async def test_a_caller_that_lost_the_answer_finds_its_request_by_its_own_reference(gateway: Running) -> None:
    alice, bob = await gateway.token("alice"), await gateway.token("bob")
    named = {"X-Client-Request-Id": "order 4711/e"}
    sent = [await ask(gateway.port, chat(token, headers=named)) for token in (alice, bob)]
    refused = await ask(gateway.port, chat(alice, {"model": "nope"}, headers=named))
    plain = await ask(gateway.port, chat(alice))
    await moved(gateway)
    mine = [answer.headers["x-request-id"] for answer in (refused, sent[0])]
    assert await ids(gateway, alice, "?reference=order%204711/e") == mine
    assert await ids(gateway, alice, "?reference=order+4711/e&outcome=refused") == mine[:1]
    assert await ids(gateway, alice, f"?reference=order+4711/e&after={mine[0]}") == mine[1:]
    assert await ids(gateway, bob, "?reference=order+4711/e") == [sent[1].headers["x-request-id"]]
    assert await ids(gateway, alice, "?reference=order") == []
    assert plain.headers["x-request-id"] in await ids(gateway, alice)
    hashes = [hashed_reference(account, "order 4711/e") for account in ("alice", "bob")]
    assert hashes[0] != hashes[1]
    assert await ids(gateway, alice, f"?reference={hashes[0]}") == []


@pytest.mark.parametrize("value", ["x" * 513, "caf\u00e9", "tab\there"], ids=["too long", "not ASCII", "a tab"])
async def test_a_reference_that_cannot_be_kept_is_refused_before_anything_is_spent(
    gateway: Running, value: str
) -> None:
    answer = await ask(gateway.port, chat(await gateway.token(), headers={"X-Client-Request-Id": value}))
    assert (answer.status, answer.error["code"]) == (400, "invalid_request")
    assert "X-Client-Request-Id with 1 to 512 printable ASCII characters" in answer.error["message"]


async def test_use_is_summed_by_day_model_and_token_without_costs(gateway: Running) -> None:
    token = await gateway.token("alice")
    old = record("alice", ago(days=40))
    await write(gateway, old, record("alice", ago(seconds=0)), record("alice", ago(seconds=0), model="llama"))
    await write(gateway, record("alice", ago(seconds=0), channel="second"), record("bob", ago(seconds=0)))
    use = await listed(gateway, token, "/v1/usage")
    sums = {"requests": 3, "completed": 3, "prompt_tokens": 33, "cached_tokens": 12, "cache_write_tokens": 6}
    sums |= {"completion_tokens": 123, "charge_micros": 369}
    assert use["data"] == [{"day": TODAY, **sums}]
    assert use["total"] == sums
    assert (use["to"] >= TODAY, use["notes"]) == (True, [])
    use = await listed(gateway, token, f"/v1/usage?by=model,token&from={old.arrived_at[:10]}&to={TODAY}")
    assert [(line["model"], line["token_id"], line["requests"]) for line in use["data"]] == [
        ("gpt-4o-mini", "alice-1a2b3c4d", 3),
        ("llama", "alice-1a2b3c4d", 1),
    ]
    day = old.arrived_at[:10]
    assert [line["day"] for line in (await listed(gateway, token, f"/v1/usage?from={day}&to={day}"))["data"]] == [day]


async def test_the_ledger_tells_top_ups_adjustments_and_charges_newest_first(gateway: Running) -> None:
    token = await gateway.token("alice")
    answer = await ask(gateway.port, chat(token))
    await gateway.gateway.runner.wait_ended()
    await gateway.store.wallet.adjust("alice", "fix-1", -500, "a reason for operators")
    await gateway.store.wallet.credit("alice", "invoice-7", 2_000_000)
    ledger = await listed(gateway, token, "/v1/account/ledger")
    kinds = [(line["kind"], line["transaction"], line["request_id"]) for line in ledger["data"]]
    assert kinds == [
        ("credit", "invoice-7", None),
        ("adjust", "fix-1", None),
        ("charge", None, answer.headers["x-request-id"]),
        ("credit", "opening", None),
    ]
    assert (ledger["has_more"], ledger["next"], ledger["archived"]) == (False, None, None)
    assert "reason" not in json.dumps(ledger)
    balance = (await listed(gateway, token, "/v1/account"))["balance_micros"]
    assert sum(line["amount_micros"] for line in ledger["data"]) == balance
    pages, query = [], "?limit=1"
    while query:
        page = await listed(gateway, token, f"/v1/account/ledger{query}")
        pages += page["data"]
        query = f"?limit=1&after={page['next']}" if page["has_more"] else ""
    assert pages == ledger["data"]


WRONG: Final = [
    (
        "/v1/requests?limt=1",
        "limt",
        "no parameter limt here. Known: limit, after, model, outcome, operation, reference",
    ),
    ("/v1/requests?limit=0", "limit", "limit must be a number from 1 to 100"),
    ("/v1/requests?limit=101", "limit", "from 1 to 100"),
    ("/v1/requests?limit=%D9%A1", "limit", "from 1 to 100"),
    ("/v1/requests?limit=", "limit", "from 1 to 100"),
    ("/v1/requests?limit", "limit", "from 1 to 100"),
    ("/v1/requests?limit=1&%6Cimit=2", "limit", "Give the parameter limit once"),
    ("/v1/requests?after=x", "after", "`next` of the answer before"),
    ("/v1/requests?after=ffffffff-ffff-7fff-bfff-ffffffffffff", "after", "`next` of the answer before"),
    ("/v1/requests?outcome=done", "outcome", "one of completed, refused, caller_gone"),
    ("/v1/requests?model=", "model", "a model's name"),
    ("/v1/requests?reference=%C3%A9", "reference", "1 to 512 printable ASCII"),
    ("/v1/requests?account=bob", "account", "no parameter account"),
    ("/v1/requests?model=%FF", None, "UTF-8"),
    ("/v1/requests?=1", "", "no parameter without a name"),
    ("/v1/requests?li%1b[31mmit=%e2%80%ae", "li?[31mmit", "no parameter li?[31mmit"),
    ("/v1/usage?by=channel", "by", "some of day,model,token, each once"),
    ("/v1/usage?by=day,day", "by", "each once"),
    ("/v1/usage?from=2026-02-30", "from", "a day (UTC), as in 2026-11-21"),
    ("/v1/usage?from=2026-11-02&to=2026-11-01", "from", "a day up to `to`, 2026-11-01"),
    ("/v1/usage?from=0001-01-01", "from", "less than 366 days before it"),
    ("/v1/usage?limit=1", "limit", "Known: by, from, to"),
    ("/v1/account/ledger?after=0-0", "after", "`next` of the answer before"),
    ("/v1/account/ledger?model=m", "model", "Known: limit, after"),
]


async def test_a_wrong_parameter_is_named_with_what_is_accepted(gateway: Running) -> None:
    token = await gateway.token()
    for path, name, text in WRONG:
        answer = await fetch(gateway, token, path)
        assert (answer.status, answer.error["code"], answer.error["param"]) == (400, "invalid_request", name), path
        assert text in answer.error["message"], path
    assert (await fetch(gateway, token, "/v1/usage?to=0001-01-01")).status == 200


async def test_asking_costs_nothing_and_counts_as_a_request(upstream: FakeUpstream, serve: Serve) -> None:
    chain = """
plugins:
  - use: usage-logger
  - use: auth
  - use: rate-limit
    with: {requests_per_minute: 3, concurrent: 1}
  - use: quota
  - use: model-routing
"""
    async with serve(upstream.base_url, chain=chain) as gateway:
        token = await gateway.token(credit=0)
        paths = ("/v1/requests", "/v1/usage", "/v1/account/ledger")
        answers = [await fetch(gateway, token, path) for path in (*paths, *paths)]
        assert [answer.status for answer in answers] == [200] * 3 + [429] * 3
        assert [answer.headers["x-ratelimit-remaining-requests"] for answer in answers[:3]] == ["2", "1", "0"]
        assert {answer.error["code"] for answer in answers[3:]} == {"rate_limited"}
        account = await gateway.store.accounts.get("tester")
        assert account is not None
        assert account.balance_micros == 0


async def test_the_examples_of_the_readme_are_answered(gateway: Running) -> None:
    token, text = await gateway.token(), README.read_text()
    paths = re.findall(r'"\$BASE(/\S+[?]\S+)"', text)
    assert len(paths) == 4
    for path in paths:
        await listed(gateway, token, f"/v1{path}")


async def test_a_list_says_what_it_may_lack(gateway: Running) -> None:
    token, own = await gateway.token("alice"), record("alice", ago(days=1))
    await write(gateway, own)
    aside = gateway.store.usage.folder / "usage-2001-02.sqlite.damaged-x"
    aside.write_bytes(b"")
    found = await listed(gateway, token, "/v1/requests")
    assert [line["id"] for line in found["data"]] == [own.id]
    assert found["notes"] == ["Requests of 2001-02 cannot be read at the moment and may be missing."]
    assert (await listed(gateway, token, "/v1/usage"))["notes"] == []


async def test_a_log_of_which_nothing_can_be_read_is_not_an_empty_list(gateway: Running) -> None:
    token, folder = await gateway.token(), gateway.store.usage.folder
    await asyncio.to_thread(shutil.rmtree, folder)
    folder.write_text("no folder")
    for path in ("/v1/requests", "/v1/usage"):
        answer = await fetch(gateway, token, path)
        assert (answer.status, answer.error["code"]) == (503, "service_unavailable")
        assert str(folder).encode() not in answer.body
