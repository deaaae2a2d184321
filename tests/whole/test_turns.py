"""Upstreams that send odd or very many events: other callers are served meanwhile, and no byte is changed."""

from __future__ import annotations

import asyncio

import pytest

from tests.patience import PATIENCE_S
from tests.whole.conftest import Serve
from tests.whole.raw import ask, chat, get
from tests.whole.scripted import CHUNKED, HEAD, LAST, Fin, Forever, Scripted, Step, chunk

TEXT = b'data: {"choices":[{"index":0,"delta":{"content":"word "}}]}\n\n'
FINISH = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
END = FINISH + b"data: [DONE]\n\n"
SHAPES = {
    "comments": b":\n\n",
    "blank-lines": b"\n",
    "carriage-returns": b"\r",
    "parsed": b'data: {"choices":[{}]}\n\n',
    "windows": TEXT.replace(b"\n", b"\r\n"),
    "mixed": TEXT + b": ping\n\n" + TEXT.replace(b"\n", b"\r\n") + b'id: 1\n\ndata: {"choices":[{}]}\r\n\r\n',
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("framing", ["chunked", "until-close", "in-two"])
async def test_a_long_read_is_relayed_whole_and_in_order(shape: str, framing: str, serve: Serve) -> None:
    unit = SHAPES[shape]
    body = TEXT + unit * (60_000 // len(unit) // 2 * 2) + END
    scripts: dict[str, list[Step]] = {
        "chunked": [CHUNKED + chunk(body) + LAST],
        "until-close": [HEAD + b"\r\n" + body, Fin],
        "in-two": [CHUNKED + chunk(body[:5000]), 0.01, chunk(body[5000:]), 0.01, LAST],
    }
    async with Scripted(scripts[framing]) as upstream, serve(upstream.base_url) as gateway:
        token = await gateway.token()
        async with asyncio.timeout(PATIENCE_S):
            while upstream.connections == len(upstream.requests):  # until one is used again
                answer = await ask(gateway.port, chat(token))
                assert (answer.status, answer.whole) == (200, True)
                assert answer.body == body
                if framing == "until-close":
                    break


async def test_other_callers_are_served_beside_streams_of_events_that_must_be_parsed(serve: Serve) -> None:
    flood: list[Step] = [CHUNKED, Forever(chunk(TEXT + b'data: {"choices":[{}]}\n\n' * 7000))]
    async with Scripted(flood) as upstream, serve(upstream.base_url) as gateway:
        token = await gateway.token()
        floods = [asyncio.create_task(ask(gateway.port, chat(token))) for _ in range(4)]
        await asyncio.wait_for(upstream.arrived.wait(), PATIENCE_S)
        longest = 0.0
        loop = asyncio.get_running_loop()
        for _ in range(20):
            began = loop.time()
            assert (await ask(gateway.port, get("/healthz"))).status == 200
            longest = max(longest, loop.time() - began)
        for task in floods:
            task.cancel()
        await asyncio.wait(floods)
    assert longest < 5
