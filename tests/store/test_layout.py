"""A store says which layout its data has, and one of another layout is refused."""

from __future__ import annotations

import pytest

from gateway.base.errors import Misconfigured
from gateway.store import layout
from gateway.store.client.client import Client


async def test_a_store_without_data_gets_the_layout_of_this_version(client: Client) -> None:
    await layout.check(client)
    assert await client.call("GET", layout.KEY) is None, "a check writes nothing"
    for _ in range(2):
        await layout.ensure(client)
        assert await client.call("GET", layout.KEY) == str(layout.LAYOUT).encode()
    await layout.check(client)


@pytest.mark.parametrize("other", [layout.LAYOUT - 1, layout.LAYOUT + 1, "other"])
async def test_a_store_of_another_layout_is_refused_and_stays_as_it_is(client: Client, other: int | str) -> None:
    await client.call("SET", layout.KEY, other)
    for refused in (layout.ensure, layout.check):
        with pytest.raises(
            Misconfigured, match=f"is in layout {other}, this version reads layout {layout.LAYOUT} alone"
        ):
            await refused(client)
    assert await client.call("GET", layout.KEY) == str(other).encode()
