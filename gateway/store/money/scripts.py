"""What all the scripts of the money share: the keys they work on, and for how long a request may come late."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Final

from gateway.store.client.client import Script

KEYS: Final = ("account", "holds", "leases", "ended", "ended_at", "ledger", "credits", "stale")
KEEP_S: Final = 24 * 3600
"""How long a request's id counts as fresh."""
SKEW_S: Final = 300
"""The most that two clocks may differ."""


def script(name: str) -> Script:
    """Return the script of this name, after what all of them share."""
    folder = Path(__file__).parent
    return Script.load(folder / "wallet.lua", folder / f"{name}.lua")


@lru_cache(1024)  # a request asks for its account's twice
def keys_of(account: str) -> tuple[str, ...]:
    """All in one slot of a cluster, by the tag in braces."""
    return tuple(f"gw:{{{account}}}:{name}" for name in KEYS)
