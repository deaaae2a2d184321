"""The wallet's Lua scripts: the Redis keys of an account, how late a request may arrive, and the scripts' replies and results.

Amounts are micros.
"""

from __future__ import annotations

import re
from enum import StrEnum
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import msgspec

from gateway.base import crash_points
from gateway.base.errors import StoreAway
from gateway.store.client.client import Script

KEEP_S: Final = 24 * 3600
"""How long a request's id is accepted, in seconds."""
SKEW_S: Final = 300
"""The maximum difference between two clocks, in seconds."""

_MARK: Final = re.compile(r"[A-Z][a-z0-9]*E[0-9]+")


class AccountKeys(NamedTuple):
    """The Redis keys of one account, all in one hash slot of a cluster. The scripts unpack `KEYS` in this order."""

    account: str
    """Hash: the account's status, group, models, limits and credit line."""
    wallet: str
    """Hash: `numbers` (the balance, the sum and the number of holds, a time before which no lease ends); request id -> its hold,
    or how it was resolved and its charge; `trimmed`, the line of the ledger up to which ends were deleted; `archived`;
    of each budget, such as `M` or `Dab12cd34` or of a session `S` and its digest, when its window ends and its sum."""
    leases: str
    """Sorted set: the request ids of holds by the end of their lease."""
    ledger: str
    """Stream: every change of the balance."""
    credits: str
    """Hash: transaction id -> amount."""
    stale: str
    """Hash: request id -> cost of a settlement that came too late to be charged."""
    sessions: str
    """Sorted set: the digests of sessions with a budget, by the time of their last request."""


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


class Hold(StrEnum):
    """The outcome of a hold or of its extension. The upstream may be called only after `HELD`."""

    HELD = "HELD"
    FUNDS = "FUNDS"
    """The available balance is smaller than the amount."""
    BUSY = "BUSY"
    """The account has its maximum number of holds."""
    CONFLICT = "CONFLICT"
    """The id has a hold with another fingerprint: it belongs to another request."""
    DONE = "DONE"
    """The request is already resolved."""
    BUDGET = "BUDGET"
    """A budget of the account or of the token does not cover the amount, or has no request left."""
    LOST = "LOST"
    """The store has no hold that could be extended: it lost the request in a failover."""
    INACTIVE = "INACTIVE"
    NO_ACCOUNT = "NO_ACCOUNT"
    SKEW = "SKEW"
    """The time in the request's id is too far from the store's time. The ids of later requests follow the store's clock."""


class Settle(StrEnum):
    """The outcome of a settlement."""

    OK = "OK"
    DONE = "DONE"
    """The request was resolved before; nothing changed."""
    LATE = "LATE"
    """The lease had expired; the charge was corrected to the cost."""
    ORPHAN = "ORPHAN"
    """The store has no hold of this request; it was charged."""
    STALE = "STALE"
    """The request is too old to know whether it was charged. It was not charged now; see `Wallet.dead_letters`."""
    NO_ACCOUNT = "NO_ACCOUNT"
    KEPT = "KEPT"
    """The store is away, or refused it; it is in the journal."""


HOLDS: Final = {outcome.encode(): outcome for outcome in Hold}
SETTLES: Final = {outcome.encode(): outcome for outcome in Settle}
"""The outcomes as they are in replies: to look one up costs a tenth of making it of its text."""


class Credit(StrEnum):
    """The outcome of a credit or an adjustment."""

    OK = "OK"
    DONE = "DONE"
    CONFLICT = "CONFLICT"
    """The transaction id was used for another amount."""
    NO_ACCOUNT = "NO_ACCOUNT"
    CLOSED = "CLOSED"
    """The account is closed for good, so that nobody could spend a credit."""
    NO_CREDIT = "NO_CREDIT"
    """There is no such credit to refund."""
    LESS = "LESS"
    """Less of the credit is left, which is the amount of the reply."""
    NO_REFUND = "NO_REFUND"
    """A refund before this one is not there."""
    RESERVED = "RESERVED"
    """The transaction id is one of those of refunds."""


class HoldReply(msgspec.Struct, frozen=True):
    """The result of a hold or of its extension, and the account's numbers after it."""

    outcome: Hold
    balance: int
    held: int
    credit_line: int
    expired: tuple[tuple[str, int], ...] = ()
    """The requests whose expired hold this call ended, and the charge of each."""
    marks: str = ""
    """The budgets that a held request counts in, with their windows, for its settlement; or the budget that refused it."""
    used: int = 0
    """The present count of the budget that refused the request: micros, or requests."""

    @property
    def available(self) -> int:
        """Micros that the account may spend: its balance and credit line without its holds."""
        return self.balance - self.held + self.credit_line


class Settled(msgspec.Struct, frozen=True):
    """The outcome of a settlement, and the total charge of the request."""

    outcome: Settle
    charged: int
    used: tuple[tuple[str, int], ...] = ()
    """The marks of the budgets that the request counts in, and the least charge in each, if its window is not over."""


class Credited(msgspec.Struct, frozen=True):
    """The result of a credit, and the balance after it. `amount`: of a refund, what was booked."""

    outcome: Credit
    balance: int
    amount: int = 0


class Settlement(msgspec.Struct, frozen=True):
    """How to resolve a request: charge `cost` micros, or release its hold without a charge."""

    account: str
    request_id: str = msgspec.field(name="rid")
    cost: int = 0
    kind: Literal["settle", "release"] = "settle"
    marks: str = ""
    """The budgets that it counts in, as its hold returned them. They are used where the store has lost the hold."""


OF_HOLD: Final = 5
"""Parts of the reply to a hold, before those that seldom follow."""


def checked(reply: list[Any], key: str) -> list[Any]:
    """Return the reply. Raises `StoreAway` if it belongs to another call."""
    if reply[0] != key.encode():
        raise StoreAway("the store's reply belongs to another call")
    return reply


def hold_reply(reply: list[Any], label: str = "hold.after") -> HoldReply:
    """Return the result of a hold or of its extension. `label`: the crash point."""
    crash_points.point(label)
    outcome, balance, held, credit_line = reply[1], reply[2], reply[3], reply[4]
    if len(reply) == OF_HOLD:
        return HoldReply(HOLDS[outcome], balance, held, credit_line)
    more = reply[OF_HOLD:]
    if len(more) % 2 == 0:
        return HoldReply(HOLDS[outcome], balance, held, credit_line, tuple(pairs(more)) if more else ())
    marks, _, used = more.pop().decode().partition(" ")
    ended = tuple(pairs(more)) if more else ()
    return HoldReply(HOLDS[outcome], balance, held, credit_line, ended, marks, int(used or 0))


def pairs(flat: list[Any]) -> list[tuple[str, int]]:
    """Return requests and charges."""
    return [(request_id.decode(), charged) for request_id, charged in zip(flat[::2], flat[1::2], strict=True)]


def used_in(marks: bytes, *sums: int) -> tuple[tuple[str, int], ...]:
    """Return the mark of each budget that a settlement counts in, and the sum charged there, without budgets of past windows."""
    found = zip(_MARK.findall(marks.decode()), sums, strict=True)
    return tuple((mark, used) for mark, used in found if used >= 0)
