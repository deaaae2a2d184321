"""What a caller learns of its ledger: whether a top-up has arrived, and what each request cost. Reasons are for operators."""

from __future__ import annotations

from functools import partial
from typing import Final

import msgspec

from gateway.server.lookups import Lookups
from gateway.server.query import AFTER_LINE, DEFAULT, LIMIT, parameters
from gateway.server.requests import listed
from gateway.services import Store

PARAMETERS: Final = {"limit": LIMIT, "after": AFTER_LINE}
FIELDS: Final = ("id", "at", "kind", "amount_micros", "request_id", "transaction")


async def ledger_of(account: str, query: str, store: Store, lookups: Lookups) -> bytes:
    """Return a page of the ledger of an account, as JSON. Raises `Refused` and `StoreAway`."""
    given = parameters(query, PARAMETERS)
    limit, after = given.get("limit", DEFAULT), given.get("after", "")
    found = await lookups.run(account, partial(store.wallet.ledger, account, limit, after))
    lines = [{name: getattr(line, name) for name in FIELDS} for line in found.lines]
    return listed(lines, found.next, (), archived=msgspec.to_builtins(found.archived))
