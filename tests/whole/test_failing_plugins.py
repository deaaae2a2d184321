"""What a failing plugin leaves in the log names it, its hook, and the line of its own file; the record names it, too."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
from structlog.testing import capture_logs

from gateway.domain.exchange import Outcome
from gateway.store.client.client import Client
from gateway.testing import FakeUpstream, configuration, running
from tests.patience import PATIENCE_S
from tests.whole import failing

FILE = Path(failing.__file__)
LINE = next(number for number, line in enumerate(FILE.read_text().splitlines(), 1) if "json.loads" in line)
EVENTS = {
    "on_request": "internal_error",
    "on_response": "internal_error",
    "on_chunk": "plugin_failed",
    "on_end": "plugin_failed",
}


async def test_each_failing_hook_is_logged_with_the_plugin_and_its_line(
    store_url: str, client: Client, tmp_path: Path
) -> None:
    plugin = {"use": "tests.whole.failing:Failing", "name": "fails"}
    async with (
        FakeUpstream(pace_s=0) as upstream,
        running(configuration(upstream.base_url, plugin), tmp_path, store_url) as gateway,
    ):
        token = await gateway.token()
        for hook, event in EVENTS.items():
            with capture_logs() as logged:
                request_id = await ask(gateway.base_url, token, hook)
            (line,) = [line for line in logged if line["event"] == event]
            assert (line["plugin"], line["hook"], line["at"]) == ("fails", hook, f"{FILE}, line {LINE}")
            assert line["request_id"] == request_id
            async with asyncio.timeout(PATIENCE_S):  # an error is sent before its end is written
                while (record := await gateway.store.usage.find(request_id)) is None or record.outcome is None:
                    await asyncio.sleep(0.01)
            assert record.refused_by == ("" if hook == "on_end" else "fails")


async def test_headers_that_are_none_leave_an_error_whose_id_is_in_the_log(
    store_url: str, client: Client, tmp_path: Path
) -> None:
    async with (
        FakeUpstream(pace_s=0) as upstream,
        running(
            configuration(upstream.base_url, {"use": "tests.whole.failing:Failing"}), tmp_path, store_url
        ) as gateway,
    ):
        request_id = await ask(gateway.base_url, await gateway.token(), "headers")
        await gateway.gateway.runner.wait_ended()
        record = await gateway.store.usage.find(request_id)
        assert record is not None
        assert (record.outcome, record.status) == (Outcome.INTERNAL_ERROR, 500)


async def ask(base_url: str, token: str, hook: str) -> str:
    """Send a request during which a hook fails, and return its id."""
    body = {"model": "words", "messages": [{"role": "user", "content": "hi"}], "stream": True}
    headers = {"Authorization": f"Bearer {token}", "x-fail": hook}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{base_url}/chat/completions", json=body, headers=headers) as response,
    ):
        try:
            await response.read()
        except aiohttp.ClientPayloadError:
            assert hook == "on_chunk"
        return response.headers["x-request-id"]
