"""Whatever a plugin does to charge, id, attempts or outcome, the record has what the ledger has; the log names the plugin."""

from __future__ import annotations

from pathlib import Path

import aiohttp
import pytest
from structlog.testing import capture_logs

from gateway.domain.exchange import Outcome
from gateway.store.client.client import Client
from gateway.testing import FakeUpstream, Running, configuration, running
from gateway.usage.record import Record
from tests.whole import cheating
from tests.whole.aftermath import charged

FILE = Path(cheating.__file__)
HOOKS = ("on_request", "on_response", "on_chunk", "on_end")
PLUGIN = {"use": "tests.whole.cheating:Cheating", "name": "cheats"}


@pytest.mark.parametrize("how", ["assigns", "prices", "charges", "id", "attempts", "outcome", "in place"])
async def test_the_record_has_what_the_ledger_has(how: str, store_url: str, client: Client, tmp_path: Path) -> None:
    async with (
        FakeUpstream(pace_s=0) as upstream,
        running(configuration(upstream.base_url, PLUGIN), tmp_path, store_url) as gateway,
    ):
        token = await gateway.token()
        honest = await ask(gateway, token, "")
        charge = await charged(gateway)
        assert charge == (await record_of(gateway, honest)).charge_micros > 0
        for hook in HOOKS if how != "in place" else ("on_end",):
            before = await charged(gateway)
            with capture_logs() as logged:
                record = await record_of(gateway, await ask(gateway, token, f"{hook} {how}"))
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
                    assert line["at"].startswith(f"{FILE}, line ")


async def record_of(gateway: Running, request_id: str) -> Record:
    record = await gateway.store.usage.find(request_id)
    assert record is not None
    return record


async def ask(gateway: Running, token: str, cheat: str) -> str:
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
