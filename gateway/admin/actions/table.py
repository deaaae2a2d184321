"""The table of all actions."""

from __future__ import annotations

from typing import Any, Final

from gateway.admin.actions import (
    accounts,
    audit,
    channels,
    imports,
    links,
    management_tokens,
    money,
    requests,
    served,
    tokens,
    usage,
)
from gateway.admin.actions.action import Action

ACTIONS: Final[tuple[Action[Any, Any], ...]] = (
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
    served.list_models,
    served.list_groups,
    served.list_plugins,
    served.read_config,
    management_tokens.create,
    management_tokens.list_,
    management_tokens.revoke,
    audit.list_,
)
