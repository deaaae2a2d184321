"""A process that ends after any command of a write: its repetition with the same key completes it, and does nothing twice."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Final

import pytest

from gateway.admin.actions import accounts, imports, money, tokens
from gateway.admin.actions.accounts import AccountChange, NewAccount
from gateway.admin.actions.imports import AccountRow, AccountRows, CreditRow, CreditRows
from gateway.admin.actions.inputs import GivenBudgets
from gateway.admin.actions.local import KEY, Actor, LocalClient
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
    "accounts.create": lambda desk: accounts.create(
        desk, body=NewAccount("bob", "trial", 5, budgets=GivenBudgets(day=9), external_id="b")
    ),
    "accounts.change": lambda desk: accounts.change(
        desk, "alice", body=AccountChange(status="suspended", credit_line_micros=4, external_id="c")
    ),
    "accounts.close": lambda desk: accounts.close(desk, "alice"),
    "money.credit": lambda desk: money.credit(desk, "alice", body=NewCredit("t", 5)),
    "money.adjust": lambda desk: money.adjust(desk, "alice", body=NewAdjustment("t", -5, "why")),
    "tokens.create": lambda desk: tokens.create(desk, "alice", body=NewToken("new")),
    "tokens.change": lambda desk: tokens.change(desk, TOKEN, body=TokenChange(name="other", expires_at=4_000_000_000)),
    "tokens.disable": lambda desk: tokens.disable(desk, TOKEN),
    "tokens.rotate": lambda desk: tokens.rotate(desk, TOKEN, body=Rotation(overlap_s=0, expires_at=4_000_000_000)),
    "tokens.delete": lambda desk: tokens.delete(desk, TOKEN),
    "imports.accounts": lambda desk: imports.accounts(desk, body=ROWS),
    "imports.credits": lambda desk: imports.credits_(desk, body=CREDITS),
}


@pytest.fixture
def loaded(tmp_path: Path, store_url: str, monkeypatch: pytest.MonkeyPatch) -> Loaded:
    monkeypatch.setenv(VARIABLE, "p" * 40)
    file = tmp_path / "gateway.yaml"
    file.write_text(CONFIG.format(url=store_url, folder=tmp_path, timeout=PATIENCE_S))
    return load(file)


@asynccontextmanager
async def desk_at(loaded: Loaded, client: Client) -> AsyncIterator[LocalClient]:
    """Yield the desk of a process with this client, for requests with one key."""
    store = Store(client, client, loaded.config)
    yield LocalClient(loaded, store, Actor("test"), "the key of all requests")
    store.journal.close()


@pytest.mark.parametrize("name", WRITES)
async def test_a_write_that_was_killed_after_any_command_is_completed_by_its_repetition(
    name: str, loaded: Loaded, client: Client, store_url: str
) -> None:
    async with desk_at(loaded, client) as desk:
        await prepare(desk.store)
        before = await picture(desk.store)
        await WRITES[name](desk)
        done = await picture(desk.store)
        assert done != before
        for commands in count(1):
            await prepare(desk.store)
            dying = DyingClient.connect(store_url, timeout_s=PATIENCE_S)
            assert isinstance(dying, DyingClient)
            dying.commands = commands
            try:
                async with desk_at(loaded, dying) as own:
                    await WRITES[name](own)
                break  # it was done before so many commands
            except Killed:
                pass
            finally:
                await dying.close()
            seen = await picture(desk.store)
            lines = await client.call("XRANGE", KEY, "-", "+")
            assert seen == before or lines, "what was changed has a line in the audit log"
            await repeated(name, desk, seen == done)
            assert await picture(desk.store) == done, f"killed after {commands} commands"
            await verify(desk.store)
        assert commands > 3


async def repeated(name: str, desk: LocalClient, was_done: bool) -> None:
    """Repeat a write as a client does that got no answer."""
    try:
        await WRITES[name](desk)
    except GatewayError as error:
        assert (name, error.kind, was_done) == ("tokens.delete", "not_found", True)
