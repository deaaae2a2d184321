"""What a caller learns of its account: the balance, and what is left of its budgets and limits."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import msgspec

from gateway.budgets import Calendar
from gateway.errors import Refused
from gateway.facts import AccountLimits, Caller
from gateway.services import Store

ACCOUNT_FIELDS = ("id", "status", "group", "balance_micros", "held_micros", "holds", "credit_line_micros")


async def account_of(caller: Caller, store: Store, calendar: Calendar, headers: Mapping[str, str]) -> dict[str, object]:
    """Return the account of the caller, and the budgets and limits of it and of the token that was sent.

    `headers`: those of the response, with what is left of the limits. Raises `Refused` and `StoreAway`.
    """
    account, uses = await asyncio.gather(
        store.accounts.get(caller.account), store.wallet.budgets(caller.account, calendar.budgets(caller))
    )
    if account is None:
        raise Refused(404, "unknown_path", "There is no account behind this token any more.")
    left = {
        name.removeprefix("x-ratelimit-").replace("-", "_"): int(value)
        for name, value in headers.items()
        if name.startswith(("x-ratelimit-limit-", "x-ratelimit-remaining-"))
    }
    fields = msgspec.to_builtins(account)
    return {
        **{name: fields[name] for name in ACCOUNT_FIELDS},
        "available_micros": account.balance_micros - account.held_micros + account.credit_line_micros,
        "budgets": [calendar.report(use) for use in uses],
        "limits": {**left, "account": _given(caller.limits), "token": _given(caller.token_limits)},
    }


def _given(limits: AccountLimits) -> dict[str, int]:
    """Return the limits that are set, without those that the plugin's settings would fill in."""
    return {name: value for name, value in msgspec.structs.asdict(limits).items() if value is not None}
