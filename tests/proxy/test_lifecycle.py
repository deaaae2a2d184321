"""An exchange that ends in an error of the gateway leaves one line in the log, whatever the error is."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gateway.base.errors import GatewayError, StoreAway, StoreError
from gateway.chain.plugin import Plugin
from gateway.domain.exchange import Exchange, Outcome
from gateway.domain.reply import Reply
from gateway.store.client.client import Client
from gateway.store.money.scripts import keys_of
from gateway.testing import running
from tests.patience import PATIENCE_S
from tests.place import Place
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
async def test_an_error_of_the_gateways_own_kinds_is_logged_once(place: Place, event: str) -> None:
    step = f"  - use: tests.proxy.test_lifecycle:Raises\n    with: {{error: {event}}}\n"
    async with running(configuration("http://127.0.0.1:1/v1", chain=CHAIN + step), *place) as gateway:
        token = await gateway.token()
        with capture_logs() as lines:
            answer = await ask(gateway.port, chat(token))
    assert answer.status == (503 if event == "store_away" else 500)
    (line,) = [line for line in lines if line["event"] in RAISED]
    assert (line["event"], line["request_id"]) == (event, answer.headers["x-request-id"])
    assert line["reason"] == str(RAISED[event])


class Exits(BaseException):
    """An exception that is no `Exception`."""


SEVERE: dict[str, BaseException] = {
    type(error).__name__: error
    for error in (SystemExit(3), GeneratorExit(), KeyboardInterrupt(), Exits(), asyncio.CancelledError())
}


class LeavesPending(Plugin):
    """A plugin whose pending work raises one of `SEVERE`, also where the request is `refused` for another reason."""

    error: str
    refused: bool = False

    async def on_request(self, exchange: Exchange) -> Reply | None:
        exchange.before_upstream(self._work())
        if self.refused:
            raise RuntimeError("a bug")
        return None

    async def _work(self) -> None:
        await asyncio.sleep(0)
        raise SEVERE[self.error]


@pytest.mark.parametrize("refused", [False, True])
@pytest.mark.parametrize("error", SEVERE)
async def test_whatever_pending_work_of_a_plugin_raises_only_its_request_fails_and_has_a_record(
    place: Place, error: str, refused: bool
) -> None:
    given = f"{{error: {error}, refused: {str(refused).lower()}}}"
    step = f"  - use: tests.proxy.test_lifecycle:LeavesPending\n    with: {given}\n"
    async with running(configuration("http://127.0.0.1:1/v1", chain=CHAIN + step), *place) as gateway:
        answer = await ask(gateway.port, chat(await gateway.token()))
        assert (answer.status, answer.error["code"]) == (500, "internal_error")
        async with asyncio.timeout(PATIENCE_S):
            while (
                record := (await gateway.store.usage.ask(answer.headers["x-request-id"])).record
            ) is None or not record.outcome:
                await asyncio.sleep(0.01)
    assert (record.outcome, record.status, record.error_code) == (Outcome.INTERNAL_ERROR, 500, "internal_error")
