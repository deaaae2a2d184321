"""Kept ids: which account may name what an upstream keeps of an answer, and which channel and credential made that.

1. **An id is known to the account whose request made it.** It is in that account's own keys, so that no other one can find it.
2. **An account has at most `MOST` ids**, each for `KEPT_S`. The oldest are forgotten first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from gateway.operations.kept import KeptId
from gateway.store.client.client import Argument, Client, Script
from gateway.store.client.steps import retried

MOST: Final = 10_000
KEPT_S: Final = 30 * 24 * 3600
"""As long as OpenAI keeps a response."""
_REMEMBER: Final = Script.load(Path(__file__).with_name("kept_ids.lua"))

_decode = msgspec.msgpack.Decoder(KeptId).decode


class KeptIds:
    """The kept ids of one store. Every method may also raise `StoreAway`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def remember(self, account: str, kept: Mapping[str, KeptId]) -> asyncio.Future[Any]:
        """Remember ids, in place of what was known of them. They are sent at once; the future ends when they are written."""
        given: list[Argument] = [MOST, KEPT_S * 1000]
        for name, each in kept.items():
            given += (name, msgspec.msgpack.encode(each))
        return self._client.run(_REMEMBER, _keys(account), given)

    async def find(self, account: str, names: Collection[str]) -> dict[str, KeptId]:
        """Return those of the ids that the account has. An item whose answer was deleted is none."""
        found = await self._get(account, names)
        answers = {each.answer for each in found.values()} - found.keys()
        gone = answers - (await self._get(account, answers)).keys() if answers else answers
        return {name: each for name, each in found.items() if each.answer not in gone}

    async def _get(self, account: str, names: Collection[str]) -> dict[str, KeptId]:
        call = partial(self._client.call, "HMGET", _keys(account)[0], *names)
        found = await retried(call, self._client.timeout_s)
        return {name: _decode(value) for name, value in zip(names, found, strict=True) if value is not None}

    async def forget(self, account: str, name: str) -> None:
        """Forget the id of an answer, and with it those of its items."""
        kept, order = _keys(account)
        await asyncio.gather(self._client.submit("HDEL", kept, name), self._client.submit("ZREM", order, name))


def _keys(account: str) -> tuple[str, str]:
    return f"gw:{{{account}}}:kept", f"gw:{{{account}}}:kept:order"
