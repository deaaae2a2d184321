"""A request waits for the store twice: once before the upstream is called, once before the end of its answer."""

from __future__ import annotations

import time
from pathlib import Path

from aiohttp import ClientSession

from gateway.fake_upstream import FakeUpstream
from gateway.testing import Running, configuration, running
from tests.store_proxy import Fault, StoreProxy

ONE_WAY_S = 0.3
"""How much later than usual each reply of a script comes."""
TRIES = 6


async def times(gateway: Running, token: str) -> tuple[float, float]:
    """Return the seconds from the request to the first event and from there to the end of the stream."""
    body = {"model": "words", "messages": [{"role": "user", "content": "hi"}], "stream": True}
    headers = {"Authorization": f"Bearer {token}"}
    began = time.monotonic()
    async with (
        ClientSession() as session,
        session.post(f"{gateway.base_url}/chat/completions", json=body, headers=headers) as response,
    ):
        assert response.status == 200
        await response.content.readany()
        first = time.monotonic()
        assert (await response.read()).endswith(b"data: [DONE]\n\n")
    return first - began, time.monotonic() - first


async def test_a_request_waits_for_the_store_twice(store_url: str, tmp_path: Path) -> None:
    async with (
        FakeUpstream(pace_s=0) as upstream,
        StoreProxy(store_url, delay_s=ONE_WAY_S) as proxy,
        running(configuration(upstream.base_url), tmp_path, proxy.url) as gateway,
    ):
        token = await gateway.token(credit=10_000_000)
        await times(gateway, token)
        proxy.fault = lambda: Fault.DELAY
        first, rest = zip(*[await times(gateway, token) for _ in range(TRIES)], strict=True)
    assert min(first) >= ONE_WAY_S
    assert min(rest) >= ONE_WAY_S
    # The fastest of several, since the machine may be busy.
    assert min(first) < 2 * ONE_WAY_S, "more than one wait before the first event"
    assert min(rest) < 2 * ONE_WAY_S, "more than one wait after the last event"
