"""An example of the body of each operation that has one, for the description of the API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from gateway.management import accounts, channels, imports, links, management_tokens, money, tokens
from gateway.management.accounts import AccountChange, NewAccount
from gateway.management.allowance import GivenBudgets, GivenLimits
from gateway.management.channels import Reason, Switch, Trial
from gateway.management.imports import AccountRow, AccountRows, CreditRow, CreditRows
from gateway.management.links import NewLink
from gateway.management.management_tokens import NewManagementToken
from gateway.management.money import NewAdjustment, NewCredit
from gateway.management.operation import Scope
from gateway.management.tokens import NewToken, Rotation, TokenChange

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
    channels.disable.name: Reason("maintenance until noon"),
    channels.credential.name: Switch("off"),
    channels.test.name: Trial("gpt-4o-mini"),
    management_tokens.create.name: NewManagementToken("the shop", (Scope.ACCOUNTS, Scope.TOKENS, Scope.MONEY)),
}
"""By the names of the operations."""
