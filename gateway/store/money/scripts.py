"""What all wallet scripts share: the Redis keys of an account, and how late a request may arrive."""

from __future__ import annotations

from functools import cache, lru_cache
from pathlib import Path
from typing import Final, NamedTuple

from gateway.store.client.client import Script

KEEP_S: Final = 24 * 3600
"""How long a request's id is accepted, in seconds."""
SKEW_S: Final = 300
"""The maximum difference between two clocks, in seconds."""


class AccountKeys(NamedTuple):
    """The Redis keys of one account, all in one hash slot of a cluster. The scripts unpack `KEYS` in this order."""

    account: str
    """Hash: the account's status, group, models, limits and credit line."""
    wallet: str
    """Hash: `numbers` (the balance, the sum and the number of holds, a time before which no lease ends); request id -> its hold,
    or how it was resolved and its charge; `trimmed`, the line of the ledger up to which ends were deleted; `archived`;
    of each budget, such as `M` or `Dab12cd34`, when its window ends and its sum."""
    leases: str
    """Sorted set: the request ids of holds by the end of their lease."""
    ledger: str
    """Stream: every change of the balance."""
    credits: str
    """Hash: transaction id -> amount."""
    stale: str
    """Hash: request id -> cost of a settlement that came too late to be charged."""


KEYS: Final = AccountKeys._fields


@cache
def script(name: str) -> Script:
    """Return the script `name`, with the text of `wallet.lua` before it."""
    folder = Path(__file__).parent
    return Script.load(folder / "wallet.lua", folder / f"{name}.lua")


@lru_cache(1024)  # a request needs its account's keys twice
def keys_of(account: str) -> AccountKeys:
    """Return the keys of an account. The braces are a hash tag, which puts all of them in one slot of a cluster."""
    return AccountKeys(*(f"gw:{{{account}}}:{name}" for name in KEYS))
