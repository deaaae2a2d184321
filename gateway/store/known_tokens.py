"""What a process remembers of tokens that it has read, so that it need not read them for each request.

What is remembered may have changed: the step of `Tokens.guard_step` compares it with the store for each request.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from enum import StrEnum
from typing import Final

import msgspec

from gateway.facts import NO_BUDGETS, NO_LIMITS, AccountLimits, Budgets
from gateway.store.accounts import Profile

MOST: Final = 4096
"""Tokens that are remembered."""


class TokenStatus(StrEnum):
    """The status of a token. A disabled one is refused until it is enabled again."""

    ACTIVE = "active"
    DISABLED = "disabled"


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """A token without its secret.

    `id` is `<account>-<short id>`. Times are seconds since 1970; `last_used` is rounded down to the hour. `models`
    are names and `*` patterns, `addresses` networks such as `10.0.0.0/8`; empty means no restriction. `budgets` and `limits`
    apply in addition to those of the account. `replaces` and `replaced_by` are the ids of its predecessor and its successor,
    `counts_as` that of the first token of such a row, under which the budgets and limits of all of them count; empty for none.
    """

    id: str
    name: str = ""
    status: TokenStatus = TokenStatus.ACTIVE
    created_at: int
    expires_at: int | None = None
    last_used: int | None = None
    models: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()
    budgets: Budgets = NO_BUDGETS
    limits: AccountLimits = NO_LIMITS
    replaces: str = ""
    replaced_by: str = ""
    counts_as: str = ""

    @property
    def state(self) -> str:
        """Whether it is accepted now, in a word: its status, or that it has expired."""
        if self.status is TokenStatus.ACTIVE and self.expires_at is not None and self.expires_at <= time.time():
            return "replaced" if self.replaced_by else "expired"
        return self.status


class Authenticated(msgspec.Struct, frozen=True):
    """A valid token, its record in the store, and its account without the balance, which may have any status.

    `text` is the token itself; `profile` is the account's status, group, models, limits and budgets as the store has them.
    """

    token: Token
    account: Profile
    record: bytes
    text: str
    profile: tuple[bytes, ...]

    def __repr__(self) -> str:
        return f"<Authenticated {self.token.id}>"


class KnownTokens:
    """The tokens that were read last, by their texts. The one that was read longest ago is forgotten first."""

    def __init__(self) -> None:
        self._by_text: OrderedDict[str, Authenticated] = OrderedDict()

    def get(self, text: str) -> Authenticated | None:
        """Return what is known, or None. A token that has expired meanwhile is not known any more."""
        known = self._by_text.get(text)
        if known is not None and known.token.expires_at is not None and known.token.expires_at <= time.time():
            return None
        return known

    def add(self, read: Authenticated) -> None:
        """Remember what the store has now."""
        self._by_text[read.text] = read
        if len(self._by_text) > MOST:
            self._by_text.popitem(last=False)

    def replace(self, known: Authenticated, changed: Authenticated) -> None:
        """Remember a change that this process made, unless something else was read since."""
        if self._by_text.get(known.text) is known:
            self._by_text[known.text] = changed

    def forget(self, text: str) -> None:
        """Forget the token with this text, if it is known."""
        self._by_text.pop(text, None)

    def clear(self) -> None:
        """Forget all tokens."""
        self._by_text.clear()

    def __len__(self) -> int:
        return len(self._by_text)

    def __repr__(self) -> str:
        return f"<KnownTokens {len(self)}>"
