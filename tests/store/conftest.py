"""Fixtures for the wallet: an account, and request ids of any age."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from gateway.store.client.client import Client, Script
from gateway.store.embedded import EmbeddedStore
from gateway.store.money.wallet import HoldReply, Wallet
from gateway.store.pepper import PepperSource

ACCOUNT = "acme"
KEY = "gw:{acme}:"

_serial = count(1)


class Pepper(PepperSource):
    """A pepper that is in no file."""

    def __init__(self, pepper: bytes, name: str = "the one here") -> None:
        super().__init__(Path("/no folder"))
        self.pepper, self.name = pepper, name

    def __call__(self) -> bytes:
        return self.pepper


def request_id_at(moment_ms: int, serial: int | None = None) -> str:
    """Return a request id with this time, unique unless a serial number is given."""
    serial = next(_serial) if serial is None else serial
    return f"{moment_ms >> 16:08x}-{moment_ms & 0xFFFF:04x}-7000-8000-{serial:012x}"


def new_request_id(age_s: float = 0) -> str:
    """Return a request id of this age."""
    return request_id_at(int((time.time() - age_s) * 1000))


async def open_account(client: Client, balance: int = 0, **fields: str | int) -> None:
    """Create an account and credit it."""
    start: dict[str, str | int] = {"status": "active", "credit_line": 0}
    for name, value in (start | fields).items():
        await client.call("HSET", KEY + "account", name, value)
    await set_numbers(client, 0, 0, 0, 0)
    if balance:
        await Wallet(client).credit(ACCOUNT, "opening", balance)


async def numbers(client: Client) -> list[int]:
    """Return the balance, the sum of holds, their number, and a time before which no lease ends."""
    return [int(number) for number in (await client.call("HGET", KEY + "wallet", "numbers")).split()]


async def set_numbers(client: Client, *values: int) -> None:
    """Set what `numbers` returns."""
    await client.call("HSET", KEY + "wallet", "numbers", " ".join(map(str, values)))


async def move_balance(client: Client, amount: int) -> None:
    """Add to the balance without a line in the ledger."""
    balance, *others = await numbers(client)
    await set_numbers(client, balance + amount, *others)


async def balance_and_held(client: Client) -> tuple[int, int]:
    balance, held, _, _ = await numbers(client)
    return balance, held


async def take(wallet: Wallet, request_id: str, amount: int = 10, **terms: Any) -> HoldReply:
    """Take a hold with default terms, except those given."""
    usual: dict[str, Any] = {"floor": 0, "lease_ms": 60_000, "fingerprint": "f00d", "max_holds": 100}
    return await wallet.hold(ACCOUNT, request_id, amount=amount, **(usual | terms))


async def overdue(client: Client, request_id: str) -> None:
    """Move the end of a hold's lease to the past."""
    version, amount, _, floor, fingerprint = (await client.call("HGET", KEY + "wallet", request_id)).split()
    await client.call("HSET", KEY + "wallet", request_id, b" ".join((version, amount, b"1", floor, fingerprint)))
    await client.call("ZADD", KEY + "leases", 1, request_id)
    await set_numbers(client, *(await numbers(client))[:3], 1)


def wallet_of_then(client: Client, age_s: float) -> Wallet:
    """Return a wallet that writes ledger lines of this age, and accepts requests of any age."""
    wallet, then_ms = Wallet(client, keep_s=10 * age_s), int((time.time() - age_s) * 1000)
    for name in ("hold", "settle", "credit", "sweep"):
        text = wallet.scripts[name].text
        assert text.count('"XADD", ledger, "*"') == 1
        wallet.scripts[name] = Script(name, text.replace('"XADD", ledger, "*"', f'"XADD", ledger, "{then_ms}-*"'))
    return wallet


@pytest.fixture
async def wallet(client: Client) -> Wallet:
    """Return the wallet of an account with 100 micros."""
    await open_account(client, 100)
    return Wallet(client)


StartStore = Callable[[], EmbeddedStore]


@pytest.fixture
def own_store(tmp_path: Path, request: pytest.FixtureRequest) -> StartStore:
    """Return a function that starts the test's own server, also again after it has ended."""

    def start() -> EmbeddedStore:
        store = EmbeddedStore.start(tmp_path)
        request.addfinalizer(store.stop)
        return store

    return start
