"""Prompts and answers of chosen callers are in files, but for what is redacted. A full queue or disk stops no request."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from gateway import Caller, Outcome
from gateway.contract import broken, check
from gateway.store.client.client import Client
from gateway.testing import FakeUpstream, FixedClock, configuration, exchange, running, services, started
from plugins.content_log import ContentLog

CALLER = Caller(account="alice", token_id="alice-1", group="trial")
EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"Hello 4111"}}]}\n\n'


def lines(folder: Path) -> list[dict[str, Any]]:
    return [
        msgspec.json.decode(line) for file in sorted(folder.glob("*.jsonl")) for line in file.read_bytes().splitlines()
    ]


async def served(plugin: ContentLog, text: str = "hi", events: int = 1) -> None:
    """Let one request of a caller pass the plugin."""
    asked = exchange({"messages": [{"role": "user", "content": text}]})
    asked[Caller] = CALLER
    await plugin.on_request(asked)
    for _ in range(events):
        plugin.on_chunk(asked, EVENT)
    asked.outcome = Outcome.COMPLETED
    await plugin.on_end(asked)


async def test_the_requests_of_a_group_are_kept_and_what_matches_is_not(
    store_url: str, client: Client, tmp_path: Path
) -> None:
    folder = tmp_path / "content"
    settings = {"folder": str(folder), "groups": ["trial*"], "redact": [r"\b\d{4}\b", "s.cret"]}
    async with FakeUpstream(pace_s=0, words="It is 4111, and no secret.") as upstream:
        yaml = configuration(upstream.base_url, {"use": "content-log", "with": settings})
        async with running(
            yaml.replace('"groups":{"default":{}}', '"groups":{"default":{},"trial1":{}}'), tmp_path, store_url
        ) as gateway:
            kept, other = await gateway.token("alice", group="trial1"), await gateway.token("bob")
            answer = await gateway.ask(kept, "Is it 4111? secret")
            assert (await gateway.ask(other, "of nobody's business")).status == answer.status == 200
    (line,) = lines(folder)
    assert line["prompt"] == [{"role": "user", "content": "Is it [redacted]? [redacted]"}]
    assert line["answers"] == ["It is [redacted], and no [redacted]."]
    assert (line["id"], line["account"], line["group"]) == (answer.headers["x-request-id"], "alice", "trial1")
    assert (line["outcome"], line["channel"], line["status"]) == ("completed", "fake", 200)
    (file,) = folder.glob("*.jsonl")
    assert (file.stat().st_mode & 0o777, folder.stat().st_mode & 0o777) == (0o600, 0o700)


async def test_what_is_too_large_is_left_out_and_a_full_queue_drops(store_url: str, tmp_path: Path) -> None:
    async with services(tmp_path, store_url) as given:
        log = ContentLog(folder=str(tmp_path / "c"), accounts=("alice",), max_bytes=100, max_waiting=250)
        await started(log, given)
        await served(log, "x" * 200)
        await served(log, events=5)
        await served(log)
        await log.stop()
        await served(log, "again")
        await log.stop()
    found = lines(tmp_path / "c")
    assert [line["prompt"] and line["prompt"][0]["content"] for line in found] == [None, "hi", "again"]
    assert found[1]["answers"] == ["Hello 4111" * 2]


async def test_a_disk_that_refuses_is_logged_and_stops_nothing(store_url: str, tmp_path: Path) -> None:
    async with services(tmp_path, store_url) as given:
        log = await started(ContentLog(folder=str(tmp_path / "c"), tokens=("alice-*",)), given)
        (tmp_path / "c").rmdir()
        with capture_logs() as logged:
            await served(log)
            await log.stop()
        assert [(line["event"], line["requests"]) for line in logged] == [("content_not_written", 1)]
        (tmp_path / "c").mkdir()
        await served(log)
        await log.stop()
    assert len(lines(tmp_path / "c")) == 1


async def test_files_are_removed_after_their_days(store_url: str, tmp_path: Path) -> None:
    async with services(tmp_path, store_url) as given:
        clock = given.clock = FixedClock()
        log = await started(ContentLog(folder=str(tmp_path / "c"), accounts=("*",), retention_days=2), given)
        for _ in range(5):
            await served(log)
            await log.stop()
            clock.move(86_400)
    days = [file.name[:10] for file in sorted((tmp_path / "c").glob(f"*-{os.getpid()}.jsonl"))]
    assert days == ["2027-01-17", "2027-01-18", "2027-01-19"]


async def test_it_keeps_the_contract(store_url: str, client: Client, tmp_path: Path) -> None:
    settings = {"folder": str(tmp_path / "c"), "accounts": ["*"]}
    assert broken(await check("content-log", settings, url=store_url)) == []


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="must be 1 or more"):
        ContentLog(folder="c", retention_days=0)


async def test_what_cannot_be_read_is_left_out_and_its_neighbours_are_kept(store_url: str, tmp_path: Path) -> None:
    async with services(tmp_path, store_url) as given:
        log = await started(ContentLog(folder=str(tmp_path / "c"), tokens=("alice-*",)), given)
        await served(log)
        asked = exchange(b'{"model":"m","stream":true,"messages":[{"role":"user","content":"x","w":1e999}]}')
        asked[Caller] = CALLER
        await log.on_request(asked)
        log.on_chunk(asked, b"data: " + b'{"choices":' * 2000 + b"\n\n")
        asked.outcome = Outcome.COMPLETED
        await log.on_end(asked)
        await served(log)
        with capture_logs() as logged:
            await log.stop()
    assert (len(lines(tmp_path / "c")), logged) == (2, [])
