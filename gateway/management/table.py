"""The table of all operations."""

from __future__ import annotations

from typing import Any, Final

from gateway.management import accounts, audit, imports, links, management_tokens, money, tokens
from gateway.management.operation import Operation

OPERATIONS: Final[tuple[Operation[Any, Any], ...]] = (
    accounts.create,
    accounts.list_,
    accounts.read,
    accounts.change,
    accounts.close,
    imports.accounts,
    imports.credits_,
    money.credit,
    money.adjust,
    money.ledger,
    links.create,
    links.own,
    tokens.create,
    tokens.list_,
    tokens.list_all,
    tokens.read,
    tokens.change,
    tokens.disable,
    tokens.enable,
    tokens.delete,
    tokens.rotate,
    management_tokens.create,
    management_tokens.list_,
    management_tokens.revoke,
    audit.list_,
)
