"""Prompts and answers of chosen callers are in files, but for what is redacted. A full queue or disk stops no request."""

from __future__ import annotations

import asyncio
import fcntl
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from gateway import Caller, Exchange, Outcome
from gateway.plugin_kit import broken, check
from gateway.testing import FakeUpstream, FixedClock, configuration, exchange, running, services, started
from plugins.content_log import ContentLog
from tests.disk import small_disk
from tests.place import Place

CALLER = Caller(account="alice", token_id="alice-1", group="trial")
EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"Hello 4111"}}]}\n\n'


def lines(folder: Path) -> list[dict[str, Any]]:
    return [
        msgspec.json.decode(line) for file in sorted(folder.glob("*.jsonl")) for line in file.read_bytes().splitlines()
    ]


async def served(plugin: ContentLog, asked: Exchange | str = "hi", chunks: Sequence[bytes] = (EVENT,)) -> None:
    """Let one request of a caller pass the plugin."""
    if isinstance(asked, str):
        asked = exchange({"messages": [{"role": "user", "content": asked}]})
    asked[Caller] = CALLER
    await plugin.on_request(asked)
    await asked.body()
    plugin.on_response(asked)
    for each in chunks:
        plugin.on_chunk(asked, each)
    asked.outcome = Outcome.COMPLETED
    await plugin.on_end(asked)


@asynccontextmanager
async def logging(folder: Path, url: str, **settings: Any) -> AsyncIterator[ContentLog]:
    """Yield a plugin that writes into the folder `c`, and let it write all at the end."""
    async with services(folder, url) as given:
        log = await started(ContentLog(folder=folder / "c", **settings), given)
        yield log
        await log.stop()


async def test_the_requests_of_a_group_are_kept_and_what_matches_is_not(store_url: str, tmp_path: Path) -> None:
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
    async with logging(tmp_path, store_url, accounts=("alice",), max_bytes=100, max_waiting=250) as log:
        await served(log, "x" * 200)
        await served(log, chunks=[EVENT] * 5)
        await served(log)
        await log.stop()
        await served(log, "again")
    found = lines(tmp_path / "c")
    assert [line["prompt"] and line["prompt"][0]["content"] for line in found] == [None, "hi", "again"]
    assert found[1]["answers"] == ["Hello 4111" * 2]


async def test_a_disk_that_refuses_is_logged_and_stops_nothing(store_url: str, tmp_path: Path) -> None:
    async with logging(tmp_path, store_url, tokens=("alice-*",)) as log:
        (tmp_path / "c").rmdir()
        with capture_logs() as logged:
            await served(log)
            await log.stop()
        assert [(line["event"], line["requests"]) for line in logged] == [("content_not_written", 1)]
        (tmp_path / "c").mkdir()
        await served(log)
    assert len(lines(tmp_path / "c")) == 1


async def test_files_are_removed_after_their_days(store_url: str, tmp_path: Path) -> None:
    async with services(tmp_path, store_url) as given:
        clock = given.clock = FixedClock()
        log = await started(ContentLog(folder=tmp_path / "c", accounts=("*",), retention_days=2), given)
        for _ in range(5):
            await served(log)
            await log.stop()
            clock.move(86_400)
    days = [file.name[:10] for file in sorted((tmp_path / "c").glob(f"*-{os.getpid()}.jsonl"))]
    assert days == ["2027-01-17", "2027-01-18", "2027-01-19"]


async def test_it_keeps_the_contract(store_url: str, tmp_path: Path) -> None:
    settings = {"folder": str(tmp_path / "c"), "accounts": ["*"]}
    assert broken(await check("content-log", settings, url=store_url)) == []


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="must be 1 or more"):
        ContentLog(folder=Path("c"), retention_days=0)


async def test_what_cannot_be_read_is_left_out_and_its_neighbours_are_kept(store_url: str, tmp_path: Path) -> None:
    async with logging(tmp_path, store_url, tokens=("alice-*",)) as log:
        await served(log)
        asked = exchange(b'{"model":"m","stream":true,"messages":[{"role":"user","content":"x","w":1e999}]}')
        await served(log, asked, [b"data: " + b'{"choices":' * 2000 + b"\n\n"])
        await served(log)
        with capture_logs() as logged:
            await log.stop()
    assert (len(lines(tmp_path / "c")), logged) == (2, [])


async def test_what_tools_were_called_with_is_kept_and_all_else_that_a_choice_says(
    store_url: str, tmp_path: Path
) -> None:
    def event(index: int, **delta: Any) -> bytes:
        return b"data: %b\n\n" % msgspec.json.encode({"choices": [{"index": index, "delta": delta}]})

    def call(**fields: Any) -> list[dict[str, Any]]:
        return [{"index": 0, **fields}]

    message = {
        **{"role": "assistant", "content": None, "reasoning": "why 4111", "refusal": "no"},
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "pay", "arguments": '{"card":4111}'}},
            {"id": "b", "type": "custom", "custom": {"name": "run", "input": "x"}},
        ],
    }
    answer = {"choices": [{"index": 0, "message": message}]}
    streamed = [
        event(0, role="assistant", tool_calls=call(id="a", function={"name": "pay", "arguments": '{"ca'})),
        event(1, content="other"),
        event(0, tool_calls=call(function={"arguments": 'rd":4111}'})),
        event(0, tool_calls=[{"index": 1, "id": "b", "custom": {"name": "run", "input": "x"}}]),
        event(0, reasoning="why "),
        event(0, reasoning_content="4111", refusal="no"),
    ]
    async with logging(tmp_path, store_url, accounts=("alice",), redact=(r"4\d+",)) as log:
        await served(log, exchange(), streamed)
        await served(log, exchange(answer=answer), ())
    first, second = lines(tmp_path / "c")
    calls = [
        {"id": "a", "name": "pay", "arguments": '{"card":[redacted]}'},
        {"id": "b", "name": "run", "arguments": "x"},
    ]
    assert (first["answers"], first["tool_calls"]) == (["", "other"], [calls, []])
    assert (first["reasoning"], first["refusals"]) == (["why [redacted]", ""], ["no", ""])
    assert (second["answers"], second["tool_calls"]) == ([""], [calls])
    assert (second["reasoning"], second["refusals"]) == (["why [redacted]"], ["no"])


CALL = '{"to": "%s.com"}'
MATCHES: dict[str, tuple[str, list[Any], list[Any]]] = {
    # Where it is: the pattern, the messages, and what is kept of them.
    "a name": (
        "secret",
        [{"role": "user", "content": "x", "a secret": {"b": "secret"}}],
        [{"role": "user", "content": "x", "a [redacted]": {"b": "[redacted]"}}],
    ),
    "an escape": (
        r"\w+@example",
        [{"role": "assistant", "tool_calls": [{"function": {"arguments": CALL % r"joe\u0040example"}}]}],
        [{"role": "assistant", "tool_calls": [{"function": {"arguments": CALL % "[redacted]"}}]}],
    ),
    "a data URL": (
        r"4111\d+",
        [{"role": "user", "content": "x;base64,41112222"}],
        [{"role": "user", "content": "x;base64,[redacted]"}],
    ),
}


@pytest.mark.parametrize(("pattern", "messages", "kept"), MATCHES.values(), ids=MATCHES)
async def test_what_matches_is_kept_nowhere(place: Place, pattern: str, messages: list[Any], kept: list[Any]) -> None:
    async with logging(*place, accounts=("alice",), redact=(pattern,)) as log:
        await served(log, exchange({"model": "joe@example", "messages": messages}))
    (line,) = lines(place[0] / "c")
    assert line["prompt"] == kept
    assert line["model"] == ("[redacted]" if "@" in pattern else "joe@example")


async def test_a_full_disk_leaves_whole_lines_alone(store_url: str, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 1) as disk:
        async with services(tmp_path, store_url) as given:
            log = ContentLog(folder=disk.folder / "c", accounts=("alice",), max_bytes=500_000, max_waiting=20_000_000)
            await started(log, given)
            for number in range(8):
                await served(log, f"{number} {'x' * 200_000}")
            with capture_logs() as logged:
                await log.stop()
            kept = len(lines(disk.folder / "c"))
            assert 0 < kept < 8
            assert [(line["event"], line["requests"]) for line in logged] == [("content_not_written", 8 - kept)]
            disk.fill()
            await served(log, "y" * 200_000)
            await log.stop()
            assert len(lines(disk.folder / "c")) == kept
            disk.free()
            await served(log, "at last")
            await log.stop()
            assert lines(disk.folder / "c")[-1]["prompt"][0]["content"] == "at last"


WRITES = """
import sys
import time
from pathlib import Path
from plugins.content_log import ContentFiles
from plugins.content_log import Content
files = ContentFiles(Path(sys.argv[1]), [], 7, 1 << 30)
files.begin()
content = Content(b'[{"role":"user","content":"' + b"x" * 4_000_000 + b'"}]')
print("ready", flush=True)
while True:
    files.write([content], 1_800_000_000)
"""


def killed_while_writing(folder: Path, wait_s: float) -> None:
    with subprocess.Popen([sys.executable, "-c", WRITES, str(folder)], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        time.sleep(wait_s)  # wherever it is then: each place must do
        writer.kill()


async def test_a_worker_that_is_killed_while_it_writes_leaves_no_half_line(store_url: str, tmp_path: Path) -> None:
    folder = tmp_path / "c"
    for wait_s in (0.01, 0.03, 0.05, 0.08):
        await asyncio.to_thread(killed_while_writing, folder, wait_s)
    whole = sum(file.read_bytes().count(b"\n") for file in folder.glob("*.jsonl"))
    (folder / "2027-01-15-1.jsonl").write_bytes(b'{"a":1}\n{"b":"' + b"x" * 200_000)
    (folder / "2027-01-15-2.jsonl").write_bytes(b'{"b":"')
    async with services(tmp_path, store_url) as given:
        given.clock = FixedClock()
        await started(ContentLog(folder=folder), given)
    assert len(lines(folder)) == whole + 1
    assert (folder / "2027-01-15-1.jsonl").read_bytes() == b'{"a":1}\n'
    assert (folder / "2027-01-15-2.jsonl").read_bytes() == b""


async def test_a_line_that_another_worker_writes_just_now_is_left_alone(store_url: str, tmp_path: Path) -> None:
    folder = tmp_path / "c"
    folder.mkdir()
    path = folder / "2027-01-15-1.jsonl"
    path.write_bytes(b'{"half')
    with path.open("rb+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        async with services(tmp_path, store_url) as given:
            await started(ContentLog(folder=folder), given)
    assert path.read_bytes() == b'{"half'


async def test_the_folder_starts_at_that_of_the_configuration(
    store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    settings = {"folder": "./content/kept", "accounts": ["alice"]}
    async with FakeUpstream(pace_s=0) as upstream:
        yaml = configuration(upstream.base_url, {"use": "content-log", "with": settings})
        async with running(yaml, tmp_path, store_url) as gateway:
            assert (await gateway.ask(await gateway.token("alice"))).status == 200
    assert len(lines(tmp_path / "content" / "kept")) == 1
    assert list((tmp_path / "elsewhere").iterdir()) == []
