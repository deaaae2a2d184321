"""Layout of the store's data: a number that the store keeps. A store of another layout is refused."""

from __future__ import annotations

from typing import Final

from gateway.base.errors import Misconfigured
from gateway.store.client.client import Client

LAYOUT: Final = 2
KEY: Final = "gw:layout"


async def check(client: Client) -> None:
    """Raise `Misconfigured` where the store's data is in another layout than this version's, and `StoreAway`."""
    stored = await client.call("GET", KEY)
    if stored is not None and stored != str(LAYOUT).encode():
        raise Misconfigured(
            f"redis: the store's data is in layout {stored.decode(errors='replace')}, this version reads layout {LAYOUT} alone: "
            "start the version of the gateway that wrote it, restore a backup that this version made, or name an empty store"
        )


async def ensure(client: Client) -> None:
    """Record the layout in a store that has none. Raises `Misconfigured` for another one, and `StoreAway`."""
    await client.call("SET", KEY, LAYOUT, "NX")
    await check(client)
