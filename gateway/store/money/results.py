"""What the wallet answers. Amounts are micros."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

import msgspec


class Hold(StrEnum):
    """What a hold was answered. Only `HELD` allows the upstream to be called."""

    HELD = "HELD"
    FUNDS = "FUNDS"
    """The balance does not cover it."""
    BUSY = "BUSY"
    """The account has as many holds as it may have."""
    CONFLICT = "CONFLICT"
    """The request's id is held for another request."""
    DONE = "DONE"
    """The request was resolved already."""
    INACTIVE = "INACTIVE"
    NO_ACCOUNT = "NO_ACCOUNT"
    SKEW = "SKEW"
    """The request's id is too far from the store's time: the clocks disagree, or it waited too long."""


class Settle(StrEnum):
    """How a settlement ended."""

    OK = "OK"
    DONE = "DONE"
    """It was resolved before; nothing changed."""
    LATE = "LATE"
    """Its lease had expired; the charge was brought to its cost."""
    ORPHAN = "ORPHAN"
    """The store knew no hold; it was charged."""
    STALE = "STALE"
    """Too old to know whether it was charged: not charged, see `Wallet.dead_letters`."""
    NO_ACCOUNT = "NO_ACCOUNT"
    KEPT = "KEPT"
    """The store is away, or refuses it; the journal has it."""


class Credit(StrEnum):
    """What a credit or an adjustment was answered."""

    OK = "OK"
    DONE = "DONE"
    CONFLICT = "CONFLICT"
    """The transaction id was used for another amount."""
    NO_ACCOUNT = "NO_ACCOUNT"


class HoldReply(msgspec.Struct, frozen=True):
    """The answer to a hold, and the account's numbers after it."""

    outcome: Hold
    balance: int
    held: int
    credit_line: int
    expired: tuple[tuple[str, int], ...] = ()
    """Requests whose hold ended by its lease just now, and what each was charged."""


class Settled(msgspec.Struct, frozen=True):
    """How a settlement ended, and what the request has been charged in all."""

    outcome: Settle
    charged: int


class Credited(msgspec.Struct, frozen=True):
    """The answer to a credit, and the balance after it."""

    outcome: Credit
    balance: int


class Settlement(msgspec.Struct, frozen=True):
    """How one request is to be resolved: charged `cost` micros, or released at no charge."""

    account: str
    request_id: str = msgspec.field(name="rid")
    cost: int = 0
    kind: Literal["settle", "release"] = "settle"
