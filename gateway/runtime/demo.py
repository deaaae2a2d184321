"""What the demo adds to a gateway: an upstream that speaks at a human pace, and an account with money and a token."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from gateway import durable
from gateway.catalogue import MICROS
from gateway.config.schema import Config, Demo, host_port
from gateway.errors import Misconfigured, Refused, cannot_listen
from gateway.fake_upstream import FakeUpstream
from gateway.services import Store

OPENING: Final = "demo-opening"
"""The transaction of the first credit: given once, however often the demo starts."""


def upstream(settings: Demo) -> Callable[[Callable[[], None]], None]:
    """The demo upstream as a process of its own."""

    async def serve(ready: Callable[[], None]) -> None:
        host, port = host_port(settings.upstream)
        try:
            async with FakeUpstream(host=host, port=port):
                ready()
                await asyncio.Event().wait()
        except OSError as error:
            raise Misconfigured(f"{cannot_listen(settings.upstream, error)}; change `demo.upstream`") from None

    return lambda ready: asyncio.run(serve(ready))


async def token_of(store: Store, config: Config, settings: Demo) -> str:
    """The demo account's token, the same one at every start as long as it works; account and credit are made at the first."""
    if await store.accounts.get(settings.account) is None:
        await store.accounts.create(settings.account)
    await store.wallet.credit(settings.account, OPENING, int(settings.credit * MICROS))
    kept = config.data_path / f"{settings.account}.token"
    if kept.exists():
        token = kept.read_text(encoding="ascii").strip()
        try:
            await store.tokens.authenticate(token)
        except Refused:
            kept.unlink()
        else:
            return token
    created = await store.tokens.create(settings.account, name="demo")
    durable.write(kept, f"{created.token}\n".encode("ascii"), mode=0o600)
    return created.token
