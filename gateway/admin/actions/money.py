"""Operations on money: credits and adjustments, each booked once for its transaction id, and the ledger."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from hashlib import sha256
from itertools import islice
from typing import Annotated, Final, Literal

import msgspec

from gateway.admin.actions.accounts import existing
from gateway.admin.actions.action import DEFAULT_PAGE, LongLimit, Page, Scope, action
from gateway.admin.actions.local import LocalClient
from gateway.base.amounts import amount as units
from gateway.base.errors import StoreError
from gateway.store.accounts import MAX_AMOUNT, AccountError, unknown
from gateway.store.money.ledger import ArchivedLines, Line
from gateway.store.money.scripts import Credit, Credited

MAX_REASON: Final = 500
"""Bytes."""
REFUND: Final = "refund:"
"""The beginning of the transaction id of a refund, before that of its credit."""
LONGEST_ID: Final = 64
MOST_REFUNDS: Final = 20
"""Refunds of one credit."""

TRANSACTION: Final = "[A-Za-z0-9._:-]{1,64}"
Transaction = Annotated[
    str,
    msgspec.Meta(
        pattern=f"^{TRANSACTION}$",
        description="Your own id of this transaction, for ever: it is booked once, however often it is sent.",
    ),
]
AfterLine = Annotated[
    str,
    msgspec.Meta(
        pattern="^([1-9][0-9]{0,14}-[0-9]{1,18})?$",
        description="`next` of the answer before; empty for the newest lines.",
    ),
]


LineKind = Literal["credit", "adjust", "charge", "release", "expiry", "late"]


class NewCredit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An amount that is added to a balance."""

    transaction: Transaction
    amount_micros: Annotated[int, msgspec.Meta(ge=1, le=MAX_AMOUNT)]


class NewAdjustment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A correction of a balance up or down. The reason is kept in the ledger."""

    transaction: Transaction
    amount_micros: Annotated[int, msgspec.Meta(ge=-MAX_AMOUNT, le=MAX_AMOUNT)]
    reason: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_REASON)]


class NewRefund(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How much of a credit is refunded; null for all that is left of it. `number`: 1 for its first refund, 2 for a second one."""

    amount_micros: Annotated[int, msgspec.Meta(ge=1, le=MAX_AMOUNT)] | None = None
    number: Annotated[int, msgspec.Meta(ge=1, le=MOST_REFUNDS)] = 1


class Booked(msgspec.Struct, frozen=True):
    """A transaction, and the balance after it. `booked_before`: it was, with this amount, so that nothing was changed now."""

    account: str
    transaction: str
    amount_micros: int
    balance_micros: int
    booked_before: bool


class LedgerLines(msgspec.Struct, frozen=True):
    """Which lines of a ledger are listed. `kind`: null for all; a page may then have fewer than asked for, `has_more` is true."""

    limit: LongLimit = DEFAULT_PAGE
    after: AfterLine = ""
    kind: LineKind | None = None


class Ledger(Page[Line], frozen=True):
    """Lines of a ledger, newest first. `archived`: the oldest lines, which are no longer among them, as one sum."""

    archived: ArchivedLines | None = None


@action("POST", "/accounts/{account}/credits", Scope.MONEY)
async def credit(client: LocalClient, account: str, body: NewCredit) -> Booked:
    """Add an amount to the balance, once for each transaction id.

    409 `conflict` where the transaction was booked before with another amount; 400 where the account is closed.
    """
    move = partial(client.store.wallet.credit, account, body.transaction, body.amount_micros)
    return await _booked(client, account, body, move)


@action("POST", "/accounts/{account}/adjustments", Scope.MONEY)
async def adjust(client: LocalClient, account: str, body: NewAdjustment) -> Booked:
    """Correct the balance up or down, also below zero and of a closed account, once for each transaction id.

    409 `conflict` where the transaction was booked before with another amount.
    """
    if len(body.reason.encode()) > MAX_REASON:
        raise AccountError(f"a reason has at most {MAX_REASON} bytes")
    move = partial(client.store.wallet.adjust, account, body.transaction, body.amount_micros, body.reason)
    return await _booked(client, account, body, move)


@action("POST", "/accounts/{account}/credits/{transaction}/refunds", Scope.MONEY, status=201)
async def refund(client: LocalClient, account: str, transaction: str, body: NewRefund) -> Booked:
    """Take a credit back, or a part of it, once for each `number`. `amount_micros` of the answer says what was booked: the
    balance stops at what is held, or at zero.

    It is a line of the ledger with the reason `refund of` the credit. Repeated, it answers what was booked; 409 `conflict` where
    less was asked for, where less of the credit is left, or where the refund before this number is not there. 404 where there is no
    such credit.
    """
    check_transaction(transaction)
    names = _refunds(transaction)[: body.number]
    named = names[-1]
    credited = await moved(
        account, named, partial(client.store.wallet.refund, account, names, transaction, body.amount_micros or 0)
    )
    before = credited.outcome is Credit.DONE
    client.change.before = {"balance_micros": credited.balance - (0 if before else credited.amount)}
    client.change.after = booked = Booked(account, named, credited.amount, credited.balance, before)
    return booked


@action("GET", "/accounts/{account}/ledger", Scope.READ)
async def ledger(client: LocalClient, account: str, query: LedgerLines) -> Ledger:
    """List what changed the balance, newest first: credits, adjustments with their reasons, and the charge of each request."""
    await existing(client, account)
    page = await client.store.wallet.ledger(account, query.limit, query.after, query.kind)
    return Ledger(page.lines, bool(page.next), page.next or None, archived=page.archived)


class Refunded(msgspec.Struct, frozen=True):
    """How many refunds a credit has, and what they come to."""

    count: int
    amount_micros: int


async def refunded(client: LocalClient, account: str, credits_: Sequence[str]) -> dict[str, Refunded]:
    """Return what was refunded of credits, by their transaction ids. Raises `StoreAway`."""
    if not credits_:
        return {}
    found = iter(await client.store.wallet.booked(account, [name for each in credits_ for name in _refunds(each)]))
    sums = {}
    for each in credits_:
        booked = [-amount for amount in islice(found, MOST_REFUNDS) if amount is not None]
        sums[each] = Refunded(len(booked), sum(booked))
    return sums


def _refunds(transaction: str) -> list[str]:
    """Return the transaction ids of the refunds of a credit, in their order."""
    first = f"{REFUND}{transaction}"
    if len(first) > LONGEST_ID - len(f":{MOST_REFUNDS}"):
        first = f"{REFUND}{sha256(transaction.encode()).hexdigest()[:40]}"
    return [first, *(f"{first}:{number}" for number in range(2, MOST_REFUNDS + 1))]


def check_transaction(transaction: str) -> None:
    """Raise `AccountError` for what is no transaction id."""
    if not re.fullmatch(TRANSACTION, transaction):
        raise AccountError("a transaction id is 1 to 64 letters, digits and . _ : -")


async def moved(account: str, transaction: str, move: Callable[[], Awaitable[Credited]]) -> Credited:
    """Do a credit or an adjustment. Raises `AccountError` where nothing was booked, now or before."""
    check_transaction(transaction)
    try:
        credited = await move()
    except StoreError:  # the script has checked all arguments before it changed anything
        raise AccountError("the amount, or the balance with it, is too large to be exact") from None
    if credited.outcome is Credit.NO_ACCOUNT:
        raise unknown(account)
    if credited.outcome is Credit.NO_CREDIT:
        raise AccountError(f"the account `{account}` has no such credit").of_kind("not_found")
    if credited.outcome is Credit.LESS:
        raise AccountError(f"{units(credited.amount)} of this credit is left to refund").of_kind("conflict")
    if credited.outcome is Credit.NO_REFUND:
        raise AccountError("the refund before this number is not there: give its next number").of_kind("conflict")
    if credited.outcome is Credit.RESERVED:
        raise AccountError("a transaction id that begins with `refund:` is that of a refund: choose another")
    if credited.outcome is Credit.CLOSED:
        raise AccountError(f"the account `{account}` is closed for good: nothing was credited")
    if credited.outcome is Credit.CONFLICT:
        raise AccountError(
            f"the transaction `{transaction}` was booked before with another amount: nothing was changed"
        ).of_kind("conflict")
    return credited


async def _booked(
    client: LocalClient, account: str, body: NewCredit | NewAdjustment, move: Callable[[], Awaitable[Credited]]
) -> Booked:
    credited = await moved(account, body.transaction, move)
    before = credited.outcome is Credit.DONE
    booked = Booked(account, body.transaction, body.amount_micros, credited.balance, before)
    client.change.before = {"balance_micros": credited.balance - (0 if before else body.amount_micros)}
    client.change.after = booked
    return booked
