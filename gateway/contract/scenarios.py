"""Takes one plugin through the lives that an exchange may have, and watches what it holds on the way.

What counts as taken: whatever a whole answer sees change in `on_request` and change back by `on_end`. Every other life
must give the same back. A store that goes away, at each place where `on_request` waits, makes such a life, too.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

import msgspec

from gateway.chat.usage import Usage
from gateway.contract.cost import Cost
from gateway.contract.endings import CHUNKS, Ending
from gateway.contract.lost_replies import LostReplies
from gateway.contract.snapshot import Held, in_memory, in_store
from gateway.errors import GatewayError, Refused, as_refused
from gateway.exchange import Attempt, Exchange, Operation, Outcome, Reply
from gateway.plugin import Plugin
from gateway.store.client.client import Client
from gateway.testing import exchange

LONGEST_S: Final = 5
"""A hook that takes longer is one that hangs."""


class ScenarioResult(msgspec.Struct):
    """What was seen of one life."""

    ending: Ending
    before: Held
    during: Held = {}
    after: Held = {}
    problems: list[str] = []
    refused: Refused | None = None
    """What `on_request` raised, where it may."""
    missing: list[str] = []
    """Facts that were promised and not set."""
    waits: int = 0
    """How often `on_request` waited."""

    def taken(self) -> set[str]:
        """What `on_request` changed and the end changed back."""
        names = self.before.keys() | self.during.keys()
        return {name for name in names if self.before.get(name, 0) != self.during.get(name, 0)} - self.left(names)

    def left(self, names: set[str]) -> set[str]:
        """Which of `names` the end did not change back."""
        return {name for name in names if self.before.get(name, 0) != self.after.get(name, 0)}


class ScenarioRunner:
    """A started plugin below those that provide what it requires. `headers` are those of every request."""

    def __init__(
        self, plugin: Plugin, above: Sequence[Plugin], client: Client, headers: Mapping[str, str], *, store: bool = True
    ) -> None:
        self.plugin = plugin
        self.above = above
        self._client = client
        self._headers = headers
        self._looks_at_store = store
        self.cost = Cost()
        """What `on_chunk` cost so far."""

    async def live(self, ending: Ending) -> ScenarioResult:
        """One life. Nothing that the plugin does wrong is raised."""
        asked = exchange(
            b"" if ending.method == "GET" else None, method=ending.method, path=ending.path, headers=self._headers
        )
        misdirected = asked.request.operation is Operation.MISDIRECTED
        above = [plugin for plugin in self.above if plugin.sees_misdirected or not misdirected]
        for plugin in above:
            await plugin.on_request(asked)
        lived = ScenarioResult(ending, await self._held(asked))
        reply = await self._request(asked, lived)
        lived.during = await self._held(asked)
        if lived.refused is None and reply is None and not lived.problems:
            self._answer(asked, lived)
        asked.ended = time.monotonic()
        try:
            async with asyncio.timeout(LONGEST_S):
                await self.plugin.on_end(asked)
        except Exception as error:
            lived.problems.append(_said("on_end", error, ending))
        lived.after = await self._held(asked)
        for plugin in reversed(above):
            await plugin.on_end(asked)
        return lived

    async def explained(self) -> list[str]:
        """What is wrong with how the plugin explains a request that it lets through."""
        asked = exchange(headers=self._headers)
        for plugin in self.above:
            await plugin.on_request(asked)
        before = await self._held(asked)
        try:
            async with asyncio.timeout(LONGEST_S):
                text = await self.plugin.explain(asked)
        except Exception as error:
            return [f"`explain` raised {type(error).__name__}: {error}, where `on_request` passes"]
        after = await self._held(asked)
        for plugin in reversed(self.above):
            await plugin.on_end(asked)
        changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
        missing = [fact.__name__ for fact in type(self.plugin).provides if text is not None and fact not in asked]
        return [f"`explain` changes {name}" for name in changed] + [
            f"`explain` does not set {name}" for name in missing
        ]

    async def _request(self, asked: Exchange, lived: ScenarioResult) -> Reply | None:
        hook = LostReplies(self.plugin.on_request(asked), lived.ending.loses)
        reply: Reply | None = None
        try:
            async with asyncio.timeout(LONGEST_S):
                reply = await hook
                await asked.settle_pending()
        except GatewayError as error:
            lived.refused = asked.error = as_refused(error)
            asked.status, asked.outcome = asked.error.status, Outcome.REFUSED
        except Exception as error:
            lived.problems.append(_said("on_request", error, lived.ending))
            asked.outcome = Outcome.INTERNAL_ERROR
        else:
            provides = type(self.plugin).provides if asked.request.operation is Operation.CHAT and reply is None else ()
            lived.missing = [fact.__name__ for fact in provides if not isinstance(asked.get(fact), fact)]
        with suppress(GatewayError):
            await asked.settle_pending()
        lived.waits = hook.waits
        return reply

    def _answer(self, asked: Exchange, lived: ScenarioResult) -> None:
        """What the upstream and the caller do."""
        ending = lived.ending
        asked.outcome, asked.status = ending.outcome, 200
        if ending.outcome in (Outcome.REFUSED, Outcome.UPSTREAM_FAILED):
            asked.error = Refused(403, "token_restricted", "Not this model.")
            asked.status = 403
        if ending.chunks is None:
            return
        asked.channel = "check"
        asked.attempts.append(Attempt("check", "words", 200))
        asked.first_byte = time.monotonic()
        hook = "on_response"
        try:
            self.plugin.on_response(asked)
            hook = "on_chunk"
            for chunk in CHUNKS[: ending.chunks]:
                asked.bytes += len(chunk)
                asked.events += chunk.count(b"data:")
                with self.cost:
                    self.plugin.on_chunk(asked, chunk)
        except Exception as error:
            lived.problems.append(_said(hook, error, ending))
            asked.outcome = Outcome.INTERNAL_ERROR
        asked.attempts[-1].usage = Usage(10, 10, "upstream")

    async def _held(self, asked: Exchange) -> Held:
        memory = in_memory(self.plugin)
        return memory | await in_store(self._client, asked.id) if self._looks_at_store else memory


def _said(hook: str, error: Exception, ending: Ending) -> str:
    when = (
        f"where replies were lost (from wait {ending.loses + 1} on)" if ending.loses is not None else f"({ending.name})"
    )
    if isinstance(error, TimeoutError):
        return f"`{hook}` did not end within {LONGEST_S} s {when}"
    return f"`{hook}` raised {type(error).__name__}: {error} {when}"
