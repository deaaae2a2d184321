"""A process that ends after any command of a write: its repetition with the same key completes it, and does nothing twice."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Final

import pytest

from gateway.admin.actions import accounts, imports, money, tokens
from gateway.admin.actions.accounts import AccountChange, NewAccount
from gateway.admin.actions.action import Actor
from gateway.admin.actions.audit_log import KEY
from gateway.admin.actions.imports import AccountRow, AccountRows, CreditRow, CreditRows
from gateway.admin.actions.inputs import GivenBudgets
from gateway.admin.actions.local import LocalClient
from gateway.admin.actions.money import NewAdjustment, NewCredit
from gateway.admin.actions.tokens import NewToken, Rotation, TokenChange
from gateway.base.errors import GatewayError
from gateway.chain.services import Store
from gateway.config.schema import Loaded, load
from gateway.store.client.client import Client
from gateway.store.pepper import VARIABLE
from tests.admin.actions.conftest import CONFIG
from tests.admin.actions.dying import DyingClient, Killed
from tests.admin.actions.pictures import TOKEN, picture, prepare, verify
from tests.patience import PATIENCE_S

Write = Callable[[LocalClient], Awaitable[object]]

ROWS: Final = AccountRows(
    (
        AccountRow(1, "alice", "a"),
        AccountRow(2, "bob", "b", amount_micros=7),
        AccountRow(3, "carol", "c", amount_micros=8, transaction="t"),
    )
)
CREDITS: Final = CreditRows((CreditRow(1, 5, "t1", id="alice"), CreditRow(2, 6, "t2", external_id="a")))
WRITES: Final[dict[str, Write]] = {
    "accounts.create": lambda local_client: accounts.create(
        local_client, body=NewAccount("bob", "trial", 5, budgets=GivenBudgets(day=9), external_id="b")
    ),
    "accounts.change": lambda local_client: accounts.change(
        local_client, "alice", body=AccountChange(status="suspended", credit_line_micros=4, external_id="c")
    ),
    "accounts.close": lambda local_client: accounts.close(local_client, "alice"),
    "money.credit": lambda local_client: money.credit(local_client, "alice", body=NewCredit("t", 5)),
    "money.adjust": lambda local_client: money.adjust(local_client, "alice", body=NewAdjustment("t", -5, "why")),
    "tokens.create": lambda local_client: tokens.create(local_client, "alice", body=NewToken("new")),
    "tokens.change": lambda local_client: tokens.change(
        local_client, TOKEN, body=TokenChange(name="other", expires_at=datetime.fromtimestamp(4_000_000_000, UTC))
    ),
    "tokens.disable": lambda local_client: tokens.disable(local_client, TOKEN),
    "tokens.rotate": lambda local_client: tokens.rotate(
        local_client, TOKEN, body=Rotation(overlap_s=0, expires_at=datetime.fromtimestamp(4_000_000_000, UTC))
    ),
    "tokens.delete": lambda local_client: tokens.delete(local_client, TOKEN),
    "imports.accounts": lambda local_client: imports.accounts(local_client, body=ROWS),
    "imports.credits": lambda local_client: imports.credits_(local_client, body=CREDITS),
}


@pytest.fixture
def loaded(tmp_path: Path, store_url: str, monkeypatch: pytest.MonkeyPatch) -> Loaded:
    monkeypatch.setenv(VARIABLE, "p" * 40)
    file = tmp_path / "gateway.yaml"
    file.write_text(CONFIG.format(url=store_url, folder=tmp_path, timeout=PATIENCE_S))
    return load(file)


@asynccontextmanager
async def client_at(loaded: Loaded, client: Client) -> AsyncIterator[LocalClient]:
    """Yield a local client of actions of a process with this client of the store, for requests with one key."""
    store = Store(client, client, loaded.config)
    yield LocalClient(loaded, store, Actor("test"), "the key of all requests")
    store.journal.close()


@pytest.mark.parametrize("name", WRITES)
async def test_a_write_that_was_killed_after_any_command_is_completed_by_its_repetition(
    name: str, loaded: Loaded, client: Client, store_url: str
) -> None:
    async with client_at(loaded, client) as local_client:
        await prepare(local_client.store)
        before = await picture(local_client.store)
        await WRITES[name](local_client)
        done = await picture(local_client.store)
        assert done != before
        for commands in count(1):
            await prepare(local_client.store)
            dying = DyingClient.connect(store_url, timeout_s=PATIENCE_S)
            assert isinstance(dying, DyingClient)
            dying.commands = commands
            try:
                async with client_at(loaded, dying) as own:
                    await WRITES[name](own)
                break  # it was done before so many commands
            except Killed:
                pass
            finally:
                await dying.close()
            seen = await picture(local_client.store)
            lines = await client.call("XRANGE", KEY, "-", "+")
            assert seen == before or lines, "what was changed has a line in the audit log"
            await repeated(name, local_client, seen == done)
            assert await picture(local_client.store) == done, f"killed after {commands} commands"
            await verify(local_client.store)
        assert commands > 3


async def repeated(name: str, local_client: LocalClient, was_done: bool) -> None:
    """Repeat a write as a client does that got no answer."""
    try:
        await WRITES[name](local_client)
    except GatewayError as error:
        assert (name, error.kind, was_done) == ("tokens.delete", "not_found", True)
