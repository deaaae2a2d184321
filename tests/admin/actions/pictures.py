"""What operators and callers see of a few accounts, to be compared; and what must be right of them whatever was killed."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from gateway.chain.services import Store

TOKEN: Final = "alice-00000001"
NAMES: Final = ("alice", "bob", "carol")
EXTERNAL: Final = ("a", "b", "c")


async def prepare(store: Store) -> None:
    """Empty the store, and create an account with a token."""
    await store.client.call("FLUSHALL")
    await store.accounts.create("alice")
    async with store.external_ids.claimed("alice", "a"):
        await store.accounts.change("alice", external_id="a")
    await store.tokens.create("alice", short_id=TOKEN.partition("-")[2])


async def picture(store: Store) -> Any:
    """Return what operators and callers can see, without what is another one each time."""
    found = [
        msgspec.structs.replace(account, created_at="")
        for name in NAMES
        if (account := await store.accounts.get(name)) is not None
    ]
    owners = {external_id: await store.external_ids.find(external_id) for external_id in EXTERNAL}
    lines = {
        each.id: sorted(
            (line.transaction, line.amount_micros) for line in (await store.wallet.ledger(each.id, 9)).lines
        )
        for each in found
    }
    owned = {each.id: [_plain(token) for token in await store.tokens.all_of(each.id)] for each in found}
    return found, owners, lines, owned


def _plain(token: Any) -> Any:
    """Return a token without times, which depend on when the test runs."""
    fields = msgspec.structs.asdict(token) | {"created_at": 0}
    return fields | {"expires_at": fields["expires_at"] in (4_000_000_000, datetime.fromtimestamp(4_000_000_000, UTC))}


async def verify(store: Store) -> None:
    """Assert what `gateway verify` does of accounts and external ids."""
    for name in NAMES:
        account = await store.accounts.get(name)
        if account is not None:
            assert await store.wallet.verify(name) == []
            assert await store.external_ids.check(account) == ""
