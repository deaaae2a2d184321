"""A first text that comes too late is logged; an empty first event is no text."""

from __future__ import annotations

from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway import Outcome
from gateway.store.client.client import Client
from gateway.testing import FakeUpstream, configuration, exchange, running, services, started
from plugins.examples.first_token_alarm import FirstText, FirstTokenAlarm

USE = "plugins.examples.first_token_alarm:FirstTokenAlarm"
EMPTY = b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
TEXT = b'data: {"choices":[{"delta":{"content":"Hello"}}]}\n\n'
CALL = b'data: {"choices":[{"delta":{"tool_calls":[{"function":{"arguments": "{"}}]}}]}\n\n'


async def lines(folder: Path, store_url: str, slow_ms: float) -> list[MutableMapping[str, Any]]:
    """Return what is logged of one complete request."""
    async with FakeUpstream(pace_s=0.01) as upstream:
        yaml = configuration(upstream.base_url, {"use": USE, "with": {"slow_ms": slow_ms}})
        async with running(yaml, folder, store_url) as gateway:
            token = await gateway.token()
            with capture_logs() as logged:
                assert (await gateway.ask(token)).status == 200
    return [line for line in logged if line["event"] == "first_token_slow"]


async def test_a_slow_first_token_is_logged_with_its_channel(store_url: str, client: Client, tmp_path: Path) -> None:
    (line,) = await lines(tmp_path, store_url, slow_ms=1)
    assert (line["log_level"], line["channel"], line["model"], line["gave_up"]) == ("warning", "fake", "words", False)
    assert line["waited_ms"] >= 10


async def test_a_fast_first_token_is_not_logged(store_url: str, client: Client, tmp_path: Path) -> None:
    assert await lines(tmp_path, store_url, slow_ms=60_000) == []


@pytest.mark.parametrize("text", [TEXT, CALL])
async def test_the_time_is_measured_to_the_first_text(text: bytes) -> None:
    alarm, asked = FirstTokenAlarm(), exchange()
    await alarm.on_request(asked)
    alarm.on_chunk(asked, EMPTY)
    assert asked[FirstText].after_ms is None
    alarm.on_chunk(asked, text)
    first = asked[FirstText].after_ms
    assert first is not None
    alarm.on_chunk(asked, TEXT)
    assert asked[FirstText].after_ms == first


@pytest.mark.parametrize(("outcome", "lines"), [(Outcome.CALLER_GONE, 1), (Outcome.REFUSED, 0)])
async def test_a_caller_that_gave_up_has_waited_and_a_refused_one_has_not(
    store_url: str, tmp_path: Path, outcome: Outcome, lines: int
) -> None:
    async with services(tmp_path, store_url) as given:
        with capture_logs() as logged:
            alarm, asked = await started(FirstTokenAlarm(slow_ms=0.000001), given), exchange()
            await alarm.on_request(asked)
            asked.outcome = outcome
            await alarm.on_end(asked)
    assert [line["gave_up"] for line in logged] == [True] * lines
