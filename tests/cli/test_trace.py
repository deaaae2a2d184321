"""`gateway trace` has a sentence for each way in which a request can end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from datetime import UTC
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from aiohttp import web
from pytest_aiohttp import AiohttpRawServer

from gateway.admin.actions import usage
from gateway.admin.actions.remote import FeedElsewhere, HttpClient
from gateway.admin.actions.requests import in_words
from gateway.admin.actions.times import local
from gateway.admin.actions.usage import Feed
from gateway.admin.http.usage_feed import LiveUsage
from gateway.domain.exchange import Outcome
from gateway.usage.database import UsageFiles
from gateway.usage.record import AttemptRecord, Record
from tests.cli.test_usage import rows, run
from tests.patience import PATIENCE_S
from tests.records import COSTED, arrival, end, usage_database

__all__ = ["rows"]

NOTHING_SENT: dict[str, Any] = {
    "attempts": [],
    "channel": "",
    "first_byte_ms": None,
    "events": 0,
    "charge_micros": 0,
    "usage_source": "none",
}
PRICED: dict[str, Any] = {
    "price": {"input": 150_000, "output": 600_000, "cached_input": 75_000, "cache_write": 187_500, "request": 1000}
    | {"ratio": "1/2"}
}
BEFORE_THE_FIRST_BYTE: dict[str, Any] = {"first_byte_ms": None, "events": 0}

STORIES: list[tuple[dict[str, Any], str]] = [
    (
        {**NOTHING_SENT, "events": 9, "changed_by": ["redact", "rules"], "answered_by": "answer-cache"},
        "arrived, changed by redact and rules, answered by answer-cache, completed after 9 events and 2300 ms, charged nothing",
    ),
    (
        {"outcome": Outcome.STOPPED, "refused_by": "stop-words", "error_code": "content_stopped", "charge_micros": 0},
        "sent to channel openai, first byte after 312 ms, stopped by stop-words after 43 events and 2300 ms: content stopped, "
        "charged nothing",
    ),
    ({}, "sent to channel openai, first byte after 312 ms, completed after 43 events and 2300 ms, charged 0.000123"),
    (
        {"price": {"hold_micros": 900}},
        "sent to channel openai, first byte after 312 ms, completed after 43 events and 2300 ms, charged 0.000123, "
        "its hold grew to 0.0009 with a further attempt",
    ),
    (
        {"price": {"hold_refused_micros": 900}},
        "sent to channel openai, first byte after 312 ms, completed after 43 events and 2300 ms, charged 0.000123, "
        "the balance did not cover a hold of 0.0009 for a further attempt",
    ),
    (
        {"outcome": Outcome.CALLER_GONE, "events": 41, "usage_source": "estimated"},
        "sent to channel openai, first byte after 312 ms, cut by the caller after 41 events, charged 0.000123 (estimated)",
    ),
    (
        {"outcome": Outcome.CALLER_GONE, **BEFORE_THE_FIRST_BYTE, "charge_micros": 7, "usage_source": "estimated"},
        "sent to channel openai, cut by the caller before the first byte, charged 0.000007 (estimated)",
    ),
    (
        {"outcome": Outcome.CALLER_GONE, **NOTHING_SENT},
        "arrived, cut by the caller before the first byte, charged nothing",
    ),
    (
        {
            "outcome": Outcome.REFUSED,
            **NOTHING_SENT,
            "error_code": "unpriced_option",
            "status": 400,
            "error_param": "tools",
            "error_message": "Leave it out.",
        },
        'arrived and refused: unpriced option (400) of `tools`, told "Leave it out.", charged nothing',
    ),
    (
        {
            "outcome": Outcome.REFUSED,
            **NOTHING_SENT,
            "refused_by": "auth",
            "error_code": "token_expired",
            "status": 401,
        },
        "arrived and refused by auth: token expired (401), charged nothing",
    ),
    (
        {"outcome": Outcome.REFUSED, **NOTHING_SENT, "error_code": "unknown_path", "status": 404},
        "arrived and refused: unknown path (404), charged nothing",
    ),
    (
        {
            "attempts": [
                AttemptRecord("a", 429, "upstream_rate_limited"),
                AttemptRecord("b", 0, "upstream_unreachable"),
                AttemptRecord("openai", 200),
            ]
        },
        "tried channel a: upstream rate limited (429), tried channel b: upstream unreachable, sent to channel openai, "
        "first byte after 312 ms, completed after 43 events and 2300 ms, charged 0.000123",
    ),
    (
        {
            "outcome": Outcome.UPSTREAM_FAILED,
            **NOTHING_SENT,
            "attempts": [AttemptRecord("a", 500, "upstream_error")],
            "error_code": "upstream_error",
            "status": 502,
        },
        "tried channel a: upstream error (500), no channel answered: upstream error (502), charged nothing",
    ),
    (
        {
            "outcome": Outcome.UPSTREAM_TRUNCATED,
            "events": 1,
            "attempts": [AttemptRecord("openai", 200, "upstream_truncated")],
        },
        "sent to channel openai, first byte after 312 ms, ended early by the upstream after 1 event, charged 0.000123",
    ),
    (
        {"outcome": Outcome.UPSTREAM_STALLED, "longest_gap_ms": 60_000},
        "sent to channel openai, first byte after 312 ms, cut after 43 events because the upstream sent nothing more "
        "(longest gap 60000 ms), charged 0.000123",
    ),
    (
        {"outcome": Outcome.UPSTREAM_ERROR_IN_STREAM},
        "sent to channel openai, first byte after 312 ms, ended by an error of the upstream after 43 events, charged 0.000123",
    ),
    (
        {"outcome": Outcome.STOPPED, "error_code": "upstream_timeout"},
        "sent to channel openai, first byte after 312 ms, stopped by the gateway after 43 events and 2300 ms: "
        "upstream timeout, charged 0.000123",
    ),
    (
        {"outcome": Outcome.GATEWAY_CRASHED, **NOTHING_SENT},
        "arrived, never ended: the gateway's process died, and the hold ended with its lease",
    ),
    (
        {"outcome": Outcome.GATEWAY_CRASHED, **NOTHING_SENT, "charge_micros": 7},
        "arrived, never ended: the gateway's process died, and the hold ended with its lease, charged 0.000007",
    ),
    (
        {"outcome": Outcome.INTERNAL_ERROR, **NOTHING_SENT, "status": 500},
        "arrived, failed because of an internal error of the gateway (500), charged nothing",
    ),
    (
        {"outcome": Outcome.INTERNAL_ERROR, **NOTHING_SENT, "status": 500, "refused_by": "office-hours"},
        "arrived, failed because of an internal error of the plugin office-hours (500), charged nothing",
    ),
    ({**NOTHING_SENT, "model": ""}, "arrived, answered 200, charged nothing"),
    (
        {
            "outcome": Outcome.REFUSED,
            **NOTHING_SENT,
            **{"refused_by": "model-routing", "error_code": "model_not_found", "status": 404},
            **{"model": "", "requested_model": "gpt-4oo"},
        },
        "arrived and refused by model-routing: model not found (404), asked for `gpt-4oo`, charged nothing",
    ),
    (
        {
            "outcome": Outcome.UPSTREAM_FAILED,
            **NOTHING_SENT,
            **{"error_code": "model_unavailable", "status": 503},
            "unavailable": {"east": "disabled", "west": "full", "north": "not open to the group"},
        },
        "arrived, no channel answered: model unavailable (503), channel east was not asked: disabled, channel west was not "
        "asked: full, channel north was not asked: not open to the group, charged nothing",
    ),
    (
        {
            "outcome": Outcome.UPSTREAM_FAILED,
            **NOTHING_SENT,
            **{"error_code": "upstream_error", "status": 502},
            "attempts": [
                AttemptRecord("a", 500, "upstream_error", message="Out of memory.", code="oom", type="server")
            ],
        },
        'tried channel a: upstream error (500), whose upstream said "Out of memory." (oom, server), no channel answered: '
        "upstream error (502), charged nothing",
    ),
    (
        {**COSTED, "upstream_cost_micros": None},
        "sent to channel openai, first byte after 312 ms, completed after 43 events and 2300 ms, charged 0.000123 for 11 "
        "prompt tokens, of which 4 read from a cache and 2 written to one, cost 0.0001",
    ),
    (
        {"charge_micros": 27},
        "sent to channel openai, first byte after 312 ms, completed after 43 events and 2300 ms, charged 0.000027 = 11 of input "
        "x 0.15 + 41 of output x 0.60 a million",
    ),
    (
        {**COSTED, **PRICED, "charge_micros": 514, "cost_micros": None, "upstream_cost_micros": None},
        "sent to channel openai, first byte after 312 ms, completed after 43 events and 2300 ms, charged 0.000514 = (5 of input x "
        "0.15 + 4 read from a cache x 0.075 + 2 written to one x 0.1875 + 41 of output x 0.60 a million + 0.001 for the answer) x "
        "1/2 of the group",
    ),
    (
        {**COSTED, "cached_tokens": 0, "charge_micros": 0},
        "sent to channel openai, first byte after 312 ms, completed after 43 events and 2300 ms, charged nothing, cost "
        "0.0001, by the upstream's own account 0.000099",
    ),
]


@pytest.mark.parametrize(("changes", "words"), STORIES)
def test_an_end_reads_as_a_sentence(changes: dict[str, Any], words: str) -> None:
    assert in_words(end(arrival(), **changes)) == words


def test_every_outcome_has_a_sentence() -> None:
    assert {changes.get("outcome", Outcome.COMPLETED) for changes, _ in STORIES} == set(Outcome)


def test_a_request_without_an_end_is_under_way() -> None:
    assert in_words(arrival()).startswith("arrived, still under way; or its process died")


def test_trace_names_the_request_and_what_happened_to_it(rows: UsageFiles) -> None:
    record = end(arrival())
    rows.write([record])
    heading, verdict = run("trace", record.id).splitlines()
    assert heading == f"{record.id}  {local(record.arrived_at, UTC)}  chat.completions  account demo, model gpt-4o-mini"
    assert verdict == in_words(record)
    printed = msgspec.json.decode(run("trace", record.id, "--json"))
    assert printed == {"id": record.id, "verdict": in_words(record), "record": msgspec.to_builtins(record)}


def test_a_request_that_never_arrived_is_reported(rows: UsageFiles, tmp_path: Path) -> None:
    missing = arrival().id
    assert "never arrived" in run("trace", missing, code=3)
    assert msgspec.json.decode(run("trace", missing, "--json", code=3))["record"] is None


@pytest.mark.parametrize(
    "text", ["chatcmpl-123", "", "zzz", "ffffffff-ffff-7fff-bfff-ffffffffffff", "sk-alice-1a2b3c4d-secret"]
)
def test_what_is_no_id_of_a_request_is_not_said_to_have_never_arrived(rows: UsageFiles, text: str) -> None:
    said = run("usage", "show", text, code=2)
    assert "not a request's id" in said
    assert not text or text not in said
    said = run("trace", text, code=3)
    assert "nothing is found by it" in said
    assert not text or text not in said


def test_an_id_may_be_spelled_otherwise(rows: UsageFiles) -> None:
    record = end(arrival())
    rows.write([record])
    assert record.id in run("trace", f" {record.id.upper()} ")
    assert record.id in run("usage", "show", f'"{record.id}",')


def test_a_record_is_shown_with_its_charge_as_tokens_by_prices(rows: UsageFiles) -> None:
    price = {"input": 150_000, "output": 600_000, "ratio": "1"}
    tokens = {"prompt_tokens": 11, "completion_tokens": 7, "usage_source": "upstream"}
    record = end(arrival(), **tokens, charge_micros=6, price=price)
    rows.write([record])
    assert "0.000006 = 11 of input x 0.15 + 7 of output x 0.60 a million" in run("usage", "show", record.id)


def test_a_request_is_traced_by_the_id_of_its_answer(rows: UsageFiles) -> None:
    mine = end(
        arrival(), account="alice", completion_id="chatcmpl-7", token_id="alice-1a2b3c4d", tags={"tenant": "acme"}
    )
    rows.write([mine, end(arrival(), upstream_request_id="r-1"), end(arrival(), upstream_request_id="r-1")])
    assert mine.id in run("trace", "chatcmpl-7")
    assert run("trace", "r-1").count("openai") == 2
    for option in (("--token", "alice-1a2b3c4d"), ("--tag", "tenant:acme")):
        listed = run("usage", "list", *option, "--json").splitlines()
        assert [msgspec.json.decode(line)["id"] for line in listed] == [mine.id]
    sums = run("usage", "summary", "--by", "tag:tenant", "--json").splitlines()
    assert {(line := msgspec.json.decode(each))["tag:tenant"]: line["requests"] for each in sums} == {"": 2, "acme": 1}


async def first_of(ended: AsyncIterator[Record], rows: UsageFiles) -> list[Record]:
    """Write records until the first one is received, and return those that were written after it."""
    first = asyncio.ensure_future(anext(ended))
    written: list[Record] = []
    while not first.done():
        written.append(end(arrival()))
        rows.write(written[-1:])
        await asyncio.wait([first], timeout=0.05)
    return written[written.index(await first) + 1 :]


async def test_what_ends_elsewhere_is_followed_through_a_broken_connection(
    aiohttp_raw_server: AiohttpRawServer, tmp_path: Path
) -> None:
    """A proxy breaks the first connection after two events; the command's client goes on with the third."""
    rows = usage_database(tmp_path / "usage")
    live, asked = LiveUsage(), list[str]()

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        asked.append(request.headers.get("Last-Event-ID", ""))
        sent = 0

        def selects(record: Record) -> bool:
            nonlocal sent
            sent += 1
            if len(asked) == 1 and sent > 2 and request.transport is not None:
                request.transport.abort()
            return True

        return await live.send(cast(web.Request, request), Feed(UsageFiles(rows.folder), selects))

    server = await aiohttp_raw_server(answer)
    async with HttpClient.open(f"http://{server.host}:{server.port}", "a-token") as http_client:
        feed = await usage.live(http_client, query=usage.Followed())
        assert isinstance(feed, FeedElsewhere)
        async with aclosing(cast("AsyncGenerator[Record]", feed.records())) as ended:
            waiting = await first_of(ended, rows)
            waiting += [end(arrival()) for _ in range(5)]
            rows.write(waiting[-5:])
            async with asyncio.timeout(PATIENCE_S):
                assert [await anext(ended) for _ in waiting] == waiting
    assert len(asked) == 2
    assert asked[1]
    rows.close()
