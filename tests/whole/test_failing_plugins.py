"""Plugins that fail and plugins that cheat: the log and the record name them, and the books balance."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
import pytest
from structlog.testing import capture_logs

from gateway.domain.exchange import Outcome
from gateway.testing import FakeUpstream, Running, configuration, running
from gateway.usage.record import Record
from tests.patience import PATIENCE_S
from tests.place import Place
from tests.whole import cheating, failing
from tests.whole.aftermath import charged

# What a failing plugin leaves in the log names it, its hook, and the line of its own file; the record names it, too.
FILE = Path(failing.__file__)
LINE = next(number for number, line in enumerate(FILE.read_text().splitlines(), 1) if "json.loads" in line)
EVENTS = {
    "on_request": "internal_error",
    "on_response": "internal_error",
    "on_chunk": "plugin_failed",
    "on_end": "plugin_failed",
}


async def test_each_failing_hook_is_logged_with_the_plugin_and_its_line(place: Place) -> None:
    plugin = {"use": "tests.whole.failing:Failing", "name": "fails"}
    async with (
        FakeUpstream(pace_s=0) as upstream,
        running(configuration(upstream.base_url, plugin), *place) as gateway,
    ):
        token = await gateway.token()
        for hook, event in EVENTS.items():
            with capture_logs() as logged:
                request_id = await ask(gateway.base_url, token, hook)
            (line,) = [line for line in logged if line["event"] == event]
            assert (line["plugin"], line["hook"], line["at"]) == ("fails", hook, f"{FILE}, line {LINE}")
            assert line["request_id"] == request_id
            async with asyncio.timeout(PATIENCE_S):  # an error is sent before its end is written
                while (record := (await gateway.store.usage.ask(request_id)).record) is None or record.outcome is None:
                    await asyncio.sleep(0.01)
            assert record.refused_by == ("" if hook == "on_end" else "fails")


async def test_headers_that_are_none_leave_an_error_whose_id_is_in_the_log(place: Place) -> None:
    async with (
        FakeUpstream(pace_s=0) as upstream,
        running(configuration(upstream.base_url, {"use": "tests.whole.failing:Failing"}), *place) as gateway,
    ):
        request_id = await ask(gateway.base_url, await gateway.token(), "headers")
        await gateway.gateway.runner.wait_ended()
        record = (await gateway.store.usage.ask(request_id)).record
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


# Whatever a plugin does to charge, id, attempts or outcome, the record has what the ledger has; the log names the plugin.
CHEATING_PLUGINS_FILE = Path(cheating.__file__)
HOOKS = ("on_request", "on_response", "on_chunk", "on_end")
PLUGIN = {"use": "tests.whole.cheating:Cheating", "name": "cheats"}


@pytest.mark.parametrize("how", ["assigns", "prices", "charges", "id", "attempts", "outcome", "in place"])
async def test_the_record_has_what_the_ledger_has(how: str, place: Place) -> None:
    async with (
        FakeUpstream(pace_s=0) as upstream,
        running(configuration(upstream.base_url, PLUGIN), *place) as gateway,
    ):
        token = await gateway.token()
        honest = await cheating_plugins_ask(gateway, token, "")
        charge = await charged(gateway)
        assert charge == (await record_of(gateway, honest)).charge_micros > 0
        for hook in HOOKS if how != "in place" else ("on_end",):
            before = await charged(gateway)
            with capture_logs() as logged:
                record = await record_of(gateway, await cheating_plugins_ask(gateway, token, f"{hook} {how}"))
            assert record.charge_micros == await charged(gateway) - before
            if hook == "on_end":
                assert record.charge_micros == charge
                assert record.price and record.prompt_tokens and record.completion_tokens
            failures = [line for line in logged if line["event"] in ("plugin_failed", "internal_error")]
            if how == "in place" or (how == "outcome" and hook != "on_end"):
                assert failures == []
                assert record.outcome is Outcome.COMPLETED
            elif how == "outcome":
                assert [(line["plugin"], line["hook"]) for line in failures] == [("cheats", "on_end")]
                assert record.outcome is Outcome.COMPLETED
            elif (how, hook) == ("charges", "on_request"):
                (line,) = failures
                assert (line["plugin"], line["hook"]) == ("quota", "request_step")
                assert str(line["exc_info"]) == "Quota charges a request that Cheating charges"
            else:
                assert failures
                for line in failures:
                    assert (line["plugin"], line["hook"]) == ("cheats", hook)
                    assert line["at"].startswith(f"{CHEATING_PLUGINS_FILE}, line ")


async def record_of(gateway: Running, request_id: str) -> Record:
    record = (await gateway.store.usage.ask(request_id)).record
    assert record is not None
    return record


async def cheating_plugins_ask(gateway: Running, token: str, cheat: str) -> str:
    """Send a request during which the plugin cheats, and return its id."""
    body = {"model": "words", "messages": [{"role": "user", "content": "hi"}], "stream": True}
    headers = {"Authorization": f"Bearer {token}", "x-cheat": cheat}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{gateway.base_url}/chat/completions", json=body, headers=headers) as response,
    ):
        try:
            await response.read()
        except aiohttp.ClientPayloadError:
            assert cheat.startswith("on_chunk")
        await gateway.gateway.runner.wait_ended()
        return response.headers["x-request-id"]
