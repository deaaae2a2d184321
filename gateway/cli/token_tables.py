"""Tokens as they are printed: one with its fields, or many in a table."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import tzinfo
from typing import TYPE_CHECKING, Final

from gateway.cli.allowance import budgets_in_words, limits_in_words
from gateway.cli.common import print_fields, print_json, print_table
from gateway.cli.expiry import shown

if TYPE_CHECKING:
    from gateway.store.tokens import Token

COLUMNS: Final = (
    *("id", "name", "status", "created", "expires", "last used (hour)"),
    *("models", "addresses", "budgets", "limits", "rotated"),
)
OPTIONAL: Final = ("rotated", "created", "addresses", "limits", "budgets", "models", "last used (hour)")
"""Columns that are left out where the terminal has no room, the first one first."""


def print_token(token: Token, zone: tzinfo, as_json: bool) -> None:
    """Print a token, for people with times in a time zone, or for scripts."""
    if as_json:
        from gateway.store.tokens import Created

        print_json({name: getattr(token, name) for name in Created.__struct_fields__ if hasattr(token, name)})
    else:
        print_fields(dict(zip(COLUMNS, _cells(token, zone), strict=True)))


def print_tokens(tokens: Sequence[Token], zone: tzinfo, as_json: bool, *, empty: str) -> None:
    """Print tokens as a table, or for scripts one on each line."""
    if as_json:
        for token in tokens:
            print_json(token)
    else:
        print_table(COLUMNS, (_cells(token, zone) for token in tokens), optional=OPTIONAL, empty=empty)


def _cells(token: Token, zone: tzinfo) -> tuple[str, ...]:
    return (
        token.id,
        token.name or "-",
        token.state,
        *(shown(seconds, zone) for seconds in (token.created_at, token.expires_at, token.last_used)),
        _restriction(token.models),
        _restriction(token.addresses),
        budgets_in_words(token.budgets, "-"),
        limits_in_words(token.limits, "-"),
        _rotation(token),
    )


def _rotation(token: Token) -> str:
    """Return the successor of a token, or else its predecessor."""
    if token.replaced_by:
        return f"replaced by {token.replaced_by}"
    return f"replaces {token.replaces}" if token.replaces else "-"


def _restriction(names: Sequence[str]) -> str:
    return ", ".join(names) or "any"
