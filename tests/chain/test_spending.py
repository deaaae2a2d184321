"""What an account has spent in a window is what the usage log has of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway import StoreAway
from gateway.chain.services import Window
from gateway.store.client.client import Client
from gateway.testing import FakeUpstream, configuration, running


async def test_the_sum_is_of_one_account_and_one_window(store_url: str, client: Client, tmp_path: Path) -> None:
    async with (
        FakeUpstream(pace_s=0) as upstream,
        running(configuration(upstream.base_url), tmp_path, store_url) as gateway,
    ):
        services = gateway.gateway.services
        tokens = [await gateway.token(account) for account in ("alice", "bob")]
        assert await services.spent("nobody") == 0
        for token in (tokens[0], tokens[0], tokens[1]):
            assert (await gateway.ask(token)).status == 200
        await gateway.write_usage()
        charged = {}
        for name in ("alice", "bob"):
            account = await gateway.store.accounts.get(name)
            assert account is not None
            charged[name] = 5_000_000 - account.balance_micros
        assert charged["alice"] == 2 * charged["bob"] > 0
        windows: tuple[Window, ...] = ("day", "week", "month")
        for window in windows:
            assert await services.spent("alice", window) == charged["alice"]
            assert await services.spent("bob", window) == charged["bob"]
        assert await services.spent("nobody") == 0, "what it remembers for a second is right, too"
        with pytest.raises(ValueError, match="one of day, week, month, not decade"):
            await services.spent("alice", "decade")  # type: ignore[arg-type]
        for file in (tmp_path / "data/usage").glob("usage-????-??.sqlite*"):
            file.unlink()
            if file.suffix == ".sqlite":
                file.write_bytes(b"no database" * 1000)
        with pytest.raises(StoreAway, match="cannot be"):
            await services.spent("carol")
