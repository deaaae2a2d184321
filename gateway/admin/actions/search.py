"""One search for whatever one has: of a request, an account or a token."""

from __future__ import annotations

import asyncio
import re
from typing import Annotated, Final

import msgspec

from gateway.admin.actions.action import Scope, action
from gateway.admin.actions.local import LocalClient
from gateway.base.ids import check_time
from gateway.config.schema import ACCOUNT_ID
from gateway.store.accounts import Account
from gateway.store.tokens import Token
from gateway.usage import queries
from gateway.usage.home import Home
from gateway.usage.record import Record, hashed_reference

MOST: Final = 20
"""Requests of an answer."""
TOKEN: Final = re.compile(r"(?:sk-)?([a-z0-9]{3,32})-([a-z0-9]{1,8})(?:-[0-9A-Za-z]*)?")
"""The id of a token, its text, or the beginning of either."""


class SearchQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is looked for."""

    q: Annotated[
        str,
        msgspec.Meta(
            min_length=1,
            max_length=512,
            description="The id of a request, of its answer or of its upstream; what the caller sent as `X-Client-Request-Id`; the "
            "id or the external id of an account; the id of a token, or the beginning of its text.",
        ),
    ]


class Found(msgspec.Struct, frozen=True):
    """What was found: the newest 20 requests, and all accounts and tokens."""

    requests: list[Record]
    accounts: list[Account]
    tokens: list[Token]


@action("GET", "/search", Scope.READ)
async def search(client: LocalClient, query: SearchQuery) -> Found:
    """Find requests, accounts and tokens by whatever one has of them. Ids of answers are found when a request has ended."""
    text, store = query.q.strip(), client.store
    owner = await store.external_ids.find(text) if len(text.encode()) <= 200 else None
    named = [each for each in (text, owner) if each and ACCOUNT_ID.fullmatch(each)]
    tokens: list[Token] = []
    if match := TOKEN.fullmatch(text):
        begins = f"{match[1]}-{match[2]}"
        tokens = [token for token in await store.tokens.all_of(match[1]) if token.id.startswith(begins)]
    ids = await store.directory.ids()
    requests = await asyncio.to_thread(_requests, client.usage_home, text, list(ids))
    if not requests and _is_id(text) and (found := (await store.usage.ask(text)).record):
        requests = [found]
    return Found(requests, await store.accounts.several(list(dict.fromkeys(named))), tokens)


def _requests(home: Home, text: str, accounts: list[str]) -> list[Record]:
    """Return the requests of an id or a reference. Only a hash of a reference is known, another one for each account."""
    if _is_id(text):
        return [record] if (record := queries.find(home, text)) else []
    for name in ("completion_id", "upstream_request_id"):
        if found := queries.named(home, name, [text], MOST):
            return found
    return queries.named(home, "reference", [hashed_reference(account, text) for account in accounts], MOST)


def _is_id(text: str) -> bool:
    try:
        check_time(text)
    except ValueError:
        return False
    return True
