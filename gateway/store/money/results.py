"""The results of wallet calls. Amounts are micros."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, Literal

import msgspec


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
    """The time in the request's id is too far from the store's time: the clocks differ, or the request is too old."""


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
    """What the budget that refused it counts: micros, or requests."""

    @property
    def available(self) -> int:
        """What the account may spend: its balance and credit line without what is held."""
        return self.balance - self.held + self.credit_line


class Settled(msgspec.Struct, frozen=True):
    """The outcome of a settlement, and the total charge of the request."""

    outcome: Settle
    charged: int
    used: tuple[tuple[str, int], ...] = ()
    """The marks of the budgets that the request counts in, and what is charged in each at least, if its window is not over."""


class Credited(msgspec.Struct, frozen=True):
    """The result of a credit, and the balance after it."""

    outcome: Credit
    balance: int


class Settlement(msgspec.Struct, frozen=True):
    """How to resolve a request: charge `cost` micros, or release its hold without a charge."""

    account: str
    request_id: str = msgspec.field(name="rid")
    cost: int = 0
    kind: Literal["settle", "release"] = "settle"
    marks: str = ""
    """The budgets that it counts in, as its hold returned them. They are used where the store has lost the hold."""
