"""An upstream of another dialect that is hostile: what it sends is bounded, in memory and in all, and is never a whole answer."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.chat.usage import ReportedUsage
from gateway.proxy.translation import MAX_EVENT, Translation
from gateway.testing import Running, running
from plugins.anthropic import Messages
from tests.patience import PATIENCE_S
from tests.place import Place
from tests.plugins.anthropic_streams import PING, TEXT, event, start, text, wire
from tests.whole.aftermath import assert_released, last_end_record, tasks
from tests.whole.conftest import CHAIN
from tests.whole.raw import ask, chat
from tests.whole.scripted import CHUNKED, LAST, Fin, Forever, Scripted, Step, chunk

MEGABYTE = 1 << 20
BEGUN = wire([start(), *text(0, "Hello")[:2]])
PINGS = chunk(event(PING) * 1000)
LATER = chunk(event({"type": "later", "text": "x" * 20_000}))
COMMENTS = chunk(b": x\n\n" * 5000)
ENDLESS = chunk(b"x" * 60_000)
EMPTY = chunk(event({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": ""}}) * 200)
FLOODS = {"pings": PINGS, "unknown": LATER, "comments": COMMENTS, "one event": ENDLESS, "empty": EMPTY}


@asynccontextmanager
async def gateway_of(folder: Path, url: str, *scripts: list[Step]) -> AsyncIterator[tuple[Running, str, Scripted]]:
    async with Scripted(*scripts) as upstream:
        numbers = range(len(scripts))
        settings = f'base_url: "{upstream.base_url}", dialect: anthropic, max_response_bytes: {3 * MEGABYTE}'
        channels = "".join(f"  c{number}: {{{settings}}}\n" for number in numbers)
        models = "".join(f"  m{number}: {{input: 1, output: 2, channels: [c{number}]}}\n" for number in numbers)
        chain = f"{CHAIN}\n  - use: anthropic\n"
        more = f"groups: {{default: {{}}}}\nport: {{allow_non_streaming: true}}\nstore: {{timeout: {PATIENCE_S}}}"
        yaml = f"channels:\n{channels}\nmodels:\n{models}\n{more}\n{chain}"
        async with running(yaml, folder, url) as gateway:
            yield gateway, await gateway.token(), upstream


@pytest.mark.parametrize("flood", FLOODS)
async def test_a_stream_without_an_end_is_ended(place: Place, flood: str) -> None:
    before_any: list[Step] = [CHUNKED, Forever(FLOODS[flood])]
    within: list[Step] = [CHUNKED + chunk(BEGUN), Forever(FLOODS[flood])]
    async with gateway_of(*place, before_any, within, within) as (gateway, token, _):
        before = tasks()
        answer = await ask(gateway.port, chat(token, {"model": "m0"}))
        assert (answer.status, answer.error["code"]) == (502, "upstream_error")
        answer = await ask(gateway.port, chat(token, {"model": "m1"}))
        assert (answer.status, answer.whole) == (200, False)
        assert b"Hello" in answer.body
        assert b"[DONE]" not in answer.body
        assert (await last_end_record(gateway)).outcome in ("upstream_truncated", "upstream_error_in_stream", "stopped")
        answer = await ask(gateway.port, chat(token, {"model": "m2", "stream": False}))
        assert answer.status == 502
        await assert_released(gateway, None, before, 0)


async def test_a_redirect_is_not_followed(place: Place) -> None:
    async with Scripted([CHUNKED + chunk(wire(TEXT)) + LAST]) as elsewhere:
        moved = f"HTTP/1.1 307 Moved\r\nLocation: {elsewhere.base_url}/messages\r\nContent-Length: 0\r\n\r\n".encode()
        async with gateway_of(*place, [moved, Fin]) as (gateway, token, _):
            answer = await ask(gateway.port, chat(token, {"model": "m0"}))
            assert (answer.status, answer.error["code"]) == (502, "upstream_error")
            assert elsewhere.requests == []
            assert elsewhere.base_url.encode() not in answer.body


def test_what_is_kept_of_an_answer_is_bounded() -> None:
    translation = Translation(Messages(), ReportedUsage())
    translation.feed(BEGUN)
    pieces = [
        event(PING) * 100,
        event({"type": "later", "x": "y" * 100_000}),
        event({"type": "message_start", "message": {"usage": {f"n{number}": 1 for number in range(2000)}}}),
        event({"type": "message_delta", "delta": {}, "usage": {f"m{number}": "x" * 100 for number in range(2000)}}),
        event({"type": "content_block_start", "index": 1, "content_block": {"type": "later", "x": "y" * 100_000}}),
    ]
    tracemalloc.start()
    try:
        for round_ in range(20):
            for piece in pieces:
                assert b"error" not in translation.feed(piece.replace(b'"n', b'"n%d-' % round_))
        assert tracemalloc.get_traced_memory()[0] < MEGABYTE
    finally:
        tracemalloc.stop()


def test_an_event_that_is_too_long_is_an_error_however_it_is_cut() -> None:
    whole = event({"type": "later", "x": "y" * MAX_EVENT})
    for pieces in ([whole], [whole[:100], whole[100:]], [whole[:-1], whole[-1:]]):
        translation = Translation(Messages(), ReportedUsage())
        sent = b"".join(map(translation.feed, pieces))
        assert "an event is too long" in json.loads(sent.removeprefix(b"data: "))["error"]["message"]
