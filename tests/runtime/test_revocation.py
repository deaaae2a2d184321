"""Which open requests a worker ends: what is announced, what has expired, and what is found where an announcement was lost."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway import Exchange
from gateway.base.errors import Refused, StoreAway
from gateway.chain.services import Services
from gateway.metrics.registry import Metrics
from gateway.metrics.shared import SharedNumbers
from gateway.proxy.failover import Failover
from gateway.proxy.lifecycle import ExchangeRunner
from gateway.runtime import revocation
from gateway.runtime.revocation import RevocationWatch
from gateway.store.accounts import REVOKED, announce
from gateway.store.client.client import Client
from gateway.store.tokens import Authenticated, Created
from gateway.testing import exchange, services
from tests.patience import PATIENCE_S, wait_until


class Worker:
    """The open requests of one worker, and the watch that ends them."""

    def __init__(self, given: Services) -> None:
        self.tokens = given.store.tokens
        self.accounts = given.store.accounts
        self.client = given.store.client
        self.runner = ExchangeRunner(Failover(), Metrics(SharedNumbers(), given.catalogue))
        self.watch = RevocationWatch(self.runner, self.client)

    async def open(self, token: Created) -> Exchange:
        """Open a request with a token."""
        opened = exchange()
        opened[Authenticated] = await self.tokens.authenticate(token.token)
        self.runner.exchanges.add(opened)
        return opened

    async def listening(self) -> None:
        """Wait until the watch knows where the announcements are."""
        await wait_until(lambda: bool(self.watch._seen))

    async def delete_unheard(self, token: Created) -> None:
        account, _, short = token.id.rpartition("-")
        assert await self.client.call("HDEL", f"gw:{{{account}}}:tokens", short) == 1


def code(opened: Exchange) -> str | None:
    """Return the code with which a request was ended, None where it was not."""
    return None if opened.stopped is None else opened.stopped.code


@pytest.fixture
async def idle(tmp_path: Path, store_url: str) -> AsyncIterator[Worker]:
    """Yield a worker whose watch does not run."""
    async with services(tmp_path, store_url) as given:
        for name in ("alice", "bob"):
            await given.store.accounts.create(name)
        yield Worker(given)


@pytest.fixture
async def worker(idle: Worker, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Worker]:
    """Yield a worker whose watch runs, and checks nothing unless something is announced."""
    monkeypatch.setattr(revocation, "ROUND", 1 << 62)
    monkeypatch.setattr(revocation, "AGAIN_S", PATIENCE_S * 2)
    monkeypatch.setattr(revocation, "INTERVAL_S", 0.05)
    async with idle.watch:
        await idle.listening()
        yield idle


async def test_a_message_ends_nothing_that_the_store_does_not_confirm(worker: Worker) -> None:
    opened = await worker.open(await worker.tokens.create("alice"))
    ended = await worker.open(gone := await worker.tokens.create("bob"))
    for account in ("alice", "no-account", "\xff", ""):
        await announce(worker.client, REVOKED, account)
    await worker.tokens.delete(gone.id)
    await wait_until(lambda: code(ended) is not None)
    assert opened.stopped is None


async def test_what_expires_is_ended_also_while_the_store_is_away(idle: Worker) -> None:
    token = await idle.tokens.create("alice", expires_at=int(time.time()) + 2)
    opened, other = await idle.open(token), await idle.open(await idle.tokens.create("alice"))
    away = Client.connect("unix:///nowhere/store.sock")
    idle.watch._revocations._client = away
    with pytest.raises(StoreAway):
        await idle.watch.look()
    assert opened.stopped is None
    await wait_until(lambda: token.expires_at is not None and time.time() >= token.expires_at)
    with pytest.raises(StoreAway):
        await idle.watch.look()
    assert (code(opened), code(other)) == ("token_expired", None)
    await away.close()


async def test_a_token_that_is_replaced_ends_its_requests_with_the_overlap(worker: Worker) -> None:
    old, ended = await worker.tokens.create("alice"), await worker.tokens.create("alice")
    overlapping, at_once = await worker.open(old), await worker.open(ended)
    await worker.tokens.rotate(ended.id, 0)
    new = await worker.tokens.rotate(old.id, 2)
    successor = await worker.open(new)
    await wait_until(lambda: code(at_once) is not None)
    ends_at = (await worker.tokens.get(old.id)).expires_at or 0
    if time.time() < ends_at:
        assert overlapping.stopped is None
    await wait_until(lambda: code(overlapping) is not None)
    assert time.time() >= ends_at
    assert (code(at_once), code(overlapping), code(successor)) == ("token_expired", "token_expired", None)


async def test_a_request_whose_token_was_read_before_and_is_known_after_is_ended(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its token was read; the deletion was announced, and looked at, before the request was known to use it."""
    monkeypatch.setattr(revocation, "AGAIN_S", 0.5)
    token = await worker.tokens.create("alice")
    authenticated = await worker.tokens.authenticate(token.token)
    slow = exchange()
    worker.runner.exchanges.add(slow)
    first = await worker.open(token)
    await worker.tokens.delete(token.id)
    await wait_until(lambda: code(first) is not None)
    slow[Authenticated] = authenticated
    await wait_until(lambda: code(slow) is not None)


async def test_what_was_never_announced_is_found_in_its_turn(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(revocation, "ROUND", 30)
    token = await worker.tokens.create("alice")
    opened, other = await worker.open(token), await worker.open(await worker.tokens.create("alice"))
    await worker.delete_unheard(token)
    await wait_until(lambda: code(opened) is not None)
    assert other.stopped is None


@pytest.mark.parametrize("due", [False, True])
async def test_nothing_is_ended_while_the_store_is_away_and_what_is_open_is_checked_when_it_is_back(
    idle: Worker, client: Client, due: bool
) -> None:
    opened = await idle.open(token := await idle.tokens.create("alice"))
    await idle.watch.look()
    await idle.delete_unheard(token)
    if due:
        idle.watch._due["alice"] = None
    away = Client.connect("unix:///nowhere/store.sock")
    idle.watch._revocations._client = away
    with pytest.raises(StoreAway):
        await (idle.watch.check_due() if due else idle.watch.look())
    assert opened.stopped is None
    idle.watch._revocations._client = client
    await idle.watch.check_due()
    assert code(opened) == "token_invalid"
    await away.close()


async def test_what_is_announced_comes_first_and_once(idle: Worker) -> None:
    await announce(idle.client, REVOKED, "earlier")
    await idle.watch.look()
    idle.watch._due = {"waiting": None}
    for account in ("alice", "bob", "alice"):
        await announce(idle.client, REVOKED, account)
    await idle.watch.look()
    assert list(idle.watch._due) == ["alice", "bob", "waiting"]
    idle.watch._due.clear()
    await idle.watch.look()
    assert idle.watch._due == {}


async def test_many_accounts_are_read_in_batches(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(revocation, "BATCH", 2)
    tokens = []
    for number in range(7):
        await worker.accounts.create(f"many{number}")
        tokens.append(await worker.tokens.create(f"many{number}"))
    opened = [await worker.open(token) for token in tokens]
    for token in tokens[1:]:
        await worker.tokens.delete(token.id)
    await wait_until(lambda: all(map(code, opened[1:])))
    assert opened[0].stopped is None


async def test_a_request_is_stopped_once(idle: Worker) -> None:
    opened = exchange()
    stops: list[str] = []
    opened.on_stop = lambda: stops.append("stopped")
    first = Refused(401, "first", "First.")
    opened.stop(first)
    opened.stop(Refused(401, "second", "Second."))
    assert (opened.stopped, stops) == (first, ["stopped"])
