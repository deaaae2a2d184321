"""The table of all actions, and an example of the body of each that has one, for the description of the API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

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
from gateway.admin.actions.accounts import AccountChange, NewAccount
from gateway.admin.actions.action import Action, Scope
from gateway.admin.actions.channels import ChannelTest, DisablingReason, Switch
from gateway.admin.actions.imports import AccountRow, AccountRows, CreditRow, CreditRows
from gateway.admin.actions.inputs import GivenBudgets, GivenLimits
from gateway.admin.actions.links import NewLink
from gateway.admin.actions.management_tokens import NewManagementToken
from gateway.admin.actions.money import NewAdjustment, NewCredit
from gateway.admin.actions.tokens import NewToken, Rotation, TokenChange

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

DAY_2027: Final = 1_798_761_600
"""The first moment of the year 2027."""

EXAMPLES: Final[Mapping[str, msgspec.Struct]] = {
    accounts.create.name: NewAccount(
        "alice", external_id="customer-17", limits=GivenLimits(concurrent=4), budgets=GivenBudgets(month=20_000_000)
    ),
    accounts.change.name: AccountChange(status="suspended", external_id=None),
    imports.accounts.name: AccountRows((AccountRow(2, "alice", "customer-17", amount_micros=5_000_000),)),
    imports.credits_.name: CreditRows((CreditRow(2, 5_000_000, "invoice-2026-117", external_id="customer-17"),)),
    money.credit.name: NewCredit("invoice-2026-117", 5_000_000),
    money.adjust.name: NewAdjustment("refund-2026-8", -1_250_000, "paid twice"),
    links.create.name: NewLink("alice at support", (Scope.READ, Scope.ACCOUNTS)),
    tokens.create.name: NewToken("laptop", expires_at=DAY_2027, models=("gpt-*",)),
    tokens.change.name: TokenChange(name="old laptop", expires_at=None),
    tokens.rotate.name: Rotation(86_400),
    channels.disable.name: DisablingReason("maintenance until noon"),
    channels.credential.name: Switch("off"),
    channels.test.name: ChannelTest("gpt-4o-mini"),
    management_tokens.create.name: NewManagementToken("the shop", (Scope.ACCOUNTS, Scope.TOKENS, Scope.MONEY)),
}
"""By the names of the actions."""
