"""The example receiver of payments books what Stripe signed, each event once, and lets Stripe repeat what could not be booked."""

from __future__ import annotations

import asyncio
import hmac
import json
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

import aiohttp
import pytest

from gateway.admin.actions import management_tokens
from gateway.admin.actions.action import Actor, Scope
from gateway.admin.actions.local import LocalClient
from gateway.admin.actions.management_tokens import ManagementTokens, NewManagementToken
from gateway.admin.http.app import Admin, Callers
from gateway.admin.http.port import serving
from gateway.chain.services import Store
from gateway.config.schema import load
from gateway.metrics.exporter import Exporter
from tests.cli.processes import free_port
from tests.patience import PATIENCE_S

RECEIVER: Final = Path(__file__).parents[2] / "deploy" / "examples" / "payment_receiver.py"
SECRET: Final = "whsec_of_the_tests"
CONFIG: Final = "redis: {url}\ndata: {folder}\nstore: {{timeout: {timeout}}}\ngroups: {{default: {{}}}}\n"


def event(number: int, cents: int = 500, **session: object) -> bytes:
    """Return the body of an event of Stripe: a checkout that was paid, for alice."""
    paid = {
        "client_reference_id": "alice",
        "payment_status": "paid",
        "currency": "usd",
        "amount_total": cents,
    } | session
    return json.dumps({"id": f"evt_{number}", "type": "checkout.session.completed", "data": {"object": paid}}).encode()


def signature(body: bytes, at: float, secret: str = SECRET) -> str:
    return hmac.new(secret.encode(), f"{int(at)}.".encode() + body, "sha256").hexdigest()


class Shop:
    """A gateway's API and the receiver before it, each of which can be away."""

    def __init__(self, store: Store, admin: Admin) -> None:
        self.store = store
        self._admin = admin
        self._port, self._stack = free_port(), AsyncExitStack()
        self.api = f"http://127.0.0.1:{self._port}"
        self.receiver = f"http://127.0.0.1:{free_port()}/stripe"

    async def begin(self) -> None:
        """Serve the API."""
        await self._stack.enter_async_context(serving(self._admin.application(), f"127.0.0.1:{self._port}"))

    async def end(self) -> None:
        """Serve it no more."""
        await self._stack.aclose()

    async def send(self, body: bytes, header: str | None = None) -> int:
        """Send an event as Stripe does, and return the status of the answer."""
        now = time.time()
        given = f"t={int(now)},v1={signature(body, now)}" if header is None else header
        timeout = aiohttp.ClientTimeout(PATIENCE_S)
        async with (
            aiohttp.ClientSession(timeout=timeout) as client,
            client.post(self.receiver, data=body, headers={"Stripe-Signature": given}) as answer,
        ):
            return answer.status

    async def booked(self) -> list[tuple[str | None, int]]:
        """Return the transactions in the ledger of alice, the oldest first."""
        assert await self.store.wallet.verify("alice") == []
        page = await self.store.wallet.ledger("alice", 100)
        return [(line.transaction, line.amount_micros) for line in reversed(page.lines)]


@asynccontextmanager
async def received(shop: Shop, token: str) -> AsyncIterator[None]:
    """Run the receiver, whose management token is `token`."""
    port = shop.receiver.rpartition(":")[2].partition("/")[0]
    environment = {"STRIPE_SECRET": SECRET, "GATEWAY_API": shop.api, "GATEWAY_API_TOKEN": token, "PORT": port}
    process = await asyncio.create_subprocess_exec(sys.executable, str(RECEIVER), env=os.environ | environment)
    try:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", int(port))
                    break
                except ConnectionError:
                    await asyncio.sleep(0.05)
            writer.close()
            await writer.wait_closed()
        yield
    finally:
        process.kill()
        await process.wait()


@pytest.fixture
async def shop(tmp_path: Path, store_url: str) -> AsyncIterator[Shop]:
    file = tmp_path / "gateway.yaml"
    file.write_text(CONFIG.format(url=store_url, folder=tmp_path, timeout=PATIENCE_S))
    loaded = load(file)
    async with Store.open(loaded.config, store_url) as store:

        def client_of(actor: Actor, key: str) -> LocalClient:
            return LocalClient(loaded, store, actor, key)

        await store.accounts.create("alice")
        body = NewManagementToken("payments", (Scope.MONEY,))
        token = (await management_tokens.create(client_of(Actor("test"), ""), body=body)).token
        callers = Callers(lambda: "an-admin-token-of-31-characters", ManagementTokens(store.client))
        admin = Admin(callers, Exporter({}), client_of)
        shop = Shop(store, admin)
        await shop.begin()
        async with received(shop, token or ""):
            yield shop
        await shop.end()


async def test_events_are_booked_once_in_any_order_and_however_often_they_are_sent(shop: Shop) -> None:
    for number in (2, 1, 2, 3, 1):
        assert await shop.send(event(number, cents=100 * number)) == 200
    assert await shop.booked() == [("evt_2", 2_000_000), ("evt_1", 1_000_000), ("evt_3", 3_000_000)]


async def test_an_event_that_comes_many_times_at_once_is_booked_once(shop: Shop) -> None:
    assert await asyncio.gather(*(shop.send(event(1)) for _ in range(50))) == [200] * 50
    assert await shop.booked() == [("evt_1", 5_000_000)]


async def test_an_event_whose_amount_has_changed_is_not_booked_again(shop: Shop) -> None:
    assert await shop.send(event(1, cents=500)) == 200
    assert await shop.send(event(1, cents=50_000)) == 422
    assert await shop.booked() == [("evt_1", 5_000_000)]


async def test_what_stripe_did_not_sign_now_is_refused(shop: Shop) -> None:
    body, now = event(1), time.time()
    right = signature(body, now)
    forged = [
        "",
        "t=,v1=",
        f"v1={right}",
        f"t={int(now)}",
        f"t={int(now)},v0={right}",
        f"t={int(now)},v1={signature(body, now, 'another secret')}",
        f"t={int(now)},v1={signature(event(2), now)}",
        f"t={int(now)},v1={right[:-1]}",
        f"t={int(now) + 1},v1={right}",
        f"t={int(now)},t={int(now)},v1={right}",
        f"t=+{int(now)},v1={right}",
        f"t={int(now)},v1=\u00e9{right}",
        *(f"t={int(then)},v1={signature(body, then)}" for then in (now - 3600, now - 310, now + 3600)),
    ]
    assert [await shop.send(body, header) for header in forged] == [400] * len(forged)
    assert await shop.send(event(1, cents=501), f"t={int(now)},v1={right}") == 400
    assert await shop.booked() == []


async def test_one_right_signature_of_several_is_enough_while_the_secret_is_replaced(shop: Shop) -> None:
    body, now = event(1), time.time()
    old, new = signature(body, now, "the old secret"), signature(body, now)
    assert await shop.send(body, f"t={int(now)}, v1={old}, v1={new}, v0=test") == 200
    assert await shop.booked() == [("evt_1", 5_000_000)]


async def test_what_is_not_paid_or_names_no_account_is_not_booked(shop: Shop) -> None:
    assert await shop.send(event(1, payment_status="unpaid")) == 200
    assert await shop.send(event(2).replace(b"checkout.session.completed", b"customer.created")) == 200
    for session in ({"currency": "jpy"}, {"client_reference_id": None}, {"client_reference_id": "../bob"}):
        assert await shop.send(event(3, **session)) == 422
    assert await shop.send(event(4, client_reference_id="nobody")) == 422
    assert await shop.booked() == []


async def test_while_the_api_is_away_stripe_is_told_to_send_it_again(shop: Shop) -> None:
    await shop.end()
    assert await shop.send(event(1)) == 503
    await shop.begin()
    assert await shop.send(event(1)) == 200
    assert await shop.booked() == [("evt_1", 5_000_000)]


async def test_while_its_token_is_not_accepted_stripe_is_told_to_send_it_again(shop: Shop) -> None:
    tokens = ManagementTokens(shop.store.client)
    (token,) = await tokens.all()
    await tokens.revoke(token.id)
    assert await shop.send(event(1)) == 503
    assert await shop.booked() == []
