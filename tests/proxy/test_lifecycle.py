"""An exchange that ends in an error of the gateway leaves one line in the log, whatever the error is."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gateway.errors import GatewayError, StoreAway, StoreError
from gateway.exchange import Exchange, Reply
from gateway.plugin import Plugin
from gateway.store.client.client import Client
from gateway.store.money.scripts import keys_of
from gateway.testing import running
from tests.whole.conftest import CHAIN, configuration
from tests.whole.raw import ask, chat

RAISED: dict[str, BaseException] = {
    "store_error": StoreError("WRONGTYPE of a key"),
    "store_away": StoreAway("the store did not answer"),
    "internal_error": GatewayError("of another kind"),
}


class Raises(Plugin):
    """A plugin that raises one of `RAISED`."""

    error: str

    async def on_request(self, exchange: Exchange) -> Reply | None:
        raise RAISED[self.error]


async def test_what_the_store_refuses_is_a_500_and_one_line_in_the_log(
    store_url: str, client: Client, tmp_path: Path
) -> None:
    async with running(configuration("http://127.0.0.1:1/v1"), tmp_path, store_url) as gateway:
        token = await gateway.token()
        await client.call("SET", keys_of("tester").leases, "of another type")
        with capture_logs() as lines:
            answer = await ask(gateway.port, chat(token))
    assert (answer.status, answer.error["code"]) == (500, "internal_error")
    (line,) = [line for line in lines if line["event"] == "store_error"]
    assert (line["request_id"], line["by"]) == (answer.headers["x-request-id"], "quota")
    assert "WRONGTYPE" in line["reason"]
    assert token not in repr(lines)


@pytest.mark.parametrize("event", RAISED)
async def test_an_error_of_the_gateways_own_kinds_is_logged_once(
    store_url: str, client: Client, tmp_path: Path, event: str
) -> None:
    step = f"  - use: tests.proxy.test_lifecycle:Raises\n    with: {{error: {event}}}\n"
    async with running(configuration("http://127.0.0.1:1/v1", chain=CHAIN + step), tmp_path, store_url) as gateway:
        token = await gateway.token()
        with capture_logs() as lines:
            answer = await ask(gateway.port, chat(token))
    assert answer.status == (503 if event == "store_away" else 500)
    (line,) = [line for line in lines if line["event"] in RAISED]
    assert (line["event"], line["request_id"]) == (event, answer.headers["x-request-id"])
    assert line["reason"] == str(RAISED[event])
