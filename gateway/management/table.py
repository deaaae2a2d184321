"""The table of all operations."""

from __future__ import annotations

from typing import Any, Final

from gateway.management import (
    accounts,
    audit,
    channels,
    imports,
    links,
    management_tokens,
    money,
    requests,
    tokens,
    usage,
)
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
    requests.list_,
    requests.read,
    requests.trace,
    usage.summary,
    usage.export,
    usage.live,
    channels.list_,
    channels.read,
    channels.disable,
    channels.enable,
    channels.credential,
    channels.test,
    management_tokens.create,
    management_tokens.list_,
    management_tokens.revoke,
    audit.list_,
)
