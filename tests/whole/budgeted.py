"""A plugin in the place of `auth` which gives every caller and every token the same budgets."""

from __future__ import annotations

import json
from collections.abc import Mapping

import msgspec

from gateway import Authenticated, Budgets, Caller, Exchange
from gateway.store.client.client import Client
from plugins.auth import Auth

USE = "tests.whole.budgeted:Budgeted"


class Budgeted(Auth):
    """Accepts callers as `auth` does."""

    account: dict[str, int] = msgspec.field(default_factory=dict)
    """The budgets of each account, in micros, and its requests a day."""
    token: dict[str, int] = msgspec.field(default_factory=dict)
    """Those of each token."""

    def _admit(self, exchange: Exchange, authenticated: Authenticated) -> None:
        super()._admit(exchange, authenticated)
        budgets = {"budgets": Budgets(**self.account), "token_budgets": Budgets(**self.token)}
        exchange[Caller] = msgspec.structs.replace(exchange[Caller], **budgets)


def budgeted(account: Mapping[str, int] | None = None, token: Mapping[str, int] | None = None) -> str:
    """Return the entry of this plugin in a chain."""
    settings = {"account": account or {}, "token": token or {}}
    return f"{USE}\n    name: auth\n    with: {json.dumps(settings)}"


async def used(client: Client, account: str = "tester") -> dict[str, int]:
    """Return what each budget of an account and of its tokens counts, by the first letter of its field."""
    fields = await client.call("HGETALL", f"gw:{{{account}}}:wallet")
    return {field.decode(): int(stored.split()[1]) for field, stored in fields.items() if field[:1].isupper()}
