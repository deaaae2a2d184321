"""The chain: the plugins in their order, checked when it is built, then run hook by hook."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, cast

from gateway.chain.dialects import dialects_of
from gateway.chain.end_hooks import run_end_hooks
from gateway.chain.entry import Entry
from gateway.chain.failover_hooks import may_fail_over
from gateway.chain.failures import origin_of
from gateway.chain.order import check_order
from gateway.chain.request_hooks import RequestHooks
from gateway.chain.starting import START_LIMIT_S, STOP_LIMIT_S, start_all, stop_all
from gateway.errors import Refused
from gateway.exchange import Exchange, Operation
from gateway.log import Logger
from gateway.reply import Reply
from gateway.services import Services
from gateway.store.client.client import Client

log = Logger("gateway.chain")

Hook = Callable[..., None]


class Chain:
    """The plugins in order. Hooks are collected when the chain is built: one that no plugin defines costs nothing.

    Raises `Misconfigured` where a plugin requires a fact that no plugin above it provides. The message names the cure.
    """

    def __init__(self, entries: Sequence[Entry], *, generation: int = 1) -> None:
        self.entries = tuple(entries)
        self.generation = generation
        self._open = 0
        self._idle = asyncio.Event()
        # Set by `start`; a chain whose plugins plan no steps works without.
        self._requests = self._ends = cast(Client, None)
        check_order(self.entries)
        self.dialects = dialects_of(self.entries)
        self._request_entries = tuple(
            entry for entry in self.entries if entry.defines("on_request", "request_step", "on_end", "end_step")
        )
        self._failover_entries = tuple(entry for entry in self.entries if entry.defines("on_failover"))
        self._misdirected_entries = tuple(entry for entry in self._request_entries if entry.plugin.sees_misdirected)
        self.on_response = tuple(
            (entry.name, _guarded(entry, entry.plugin.on_response))
            for entry in self.entries
            if entry.defines("on_response")
        )
        self.on_chunk = tuple(
            (entry.name, _guarded(entry, entry.plugin.on_chunk)) for entry in self.entries if entry.defines("on_chunk")
        )

    def hooks_of(self, entered: Sequence[Entry]) -> tuple[list[tuple[str, Hook]], list[tuple[str, Hook]]]:
        """Return `on_response` and `on_chunk`, by names, of the last that was entered, which answers, and of those above."""
        names = {entry.name for entry in self.entries[: self.entries.index(entered[-1]) + 1]}
        return (
            [(name, hook) for name, hook in self.on_response if name in names],
            [(name, hook) for name, hook in self.on_chunk if name in names],
        )

    async def start(
        self,
        services: Services,
        *,
        limit_s: float = START_LIMIT_S,
        starting: Callable[[Entry], None] = lambda entry: None,
    ) -> None:
        """Start every plugin, in `limit_s` together. If one fails, stop those that had started.

        Steps of requests use the connection for calls before the upstream, those of ends the one for settlements.
        """
        self._requests, self._ends = services.store.client, services.store.settling
        await start_all(self.entries, services, limit_s, starting)

    async def stop(self, *, limit_s: float = STOP_LIMIT_S) -> None:
        """Stop every plugin, last first, in `limit_s` together. What takes longer is cancelled and logged."""
        await stop_all(self.entries, limit_s)

    async def idle(self) -> None:
        """Wait until no exchange is between its request hooks and its end hooks."""
        while self._open > 0:
            self._idle.clear()
            await self._idle.wait()

    async def request(self, exchange: Exchange, entered: list[Entry]) -> Reply | None:
        """Run the request hooks. Every entry that is entered is appended to `entered`, also one that refuses."""
        self._open += 1
        misdirected = exchange.request.operation is Operation.MISDIRECTED
        entries = self._misdirected_entries if misdirected else self._request_entries
        return await RequestHooks(exchange, entries, entered, self._requests).run()

    async def may_fail_over(self, exchange: Exchange) -> bool:
        """Return whether the plugins let another upstream be called after one that failed."""
        return await may_fail_over(exchange, self._failover_entries)

    async def end(self, exchange: Exchange, entered: list[Entry]) -> None:
        """Run the end hooks of all entries that were entered. An exception of one does not affect the others.

        An entry is removed from `entered` when its hook has ended: the last one is the one whose hook runs.

        To cancel this means to give up the hook that is running: those of the other plugins still run.
        """
        try:
            await run_end_hooks(exchange, entered, self._ends)
        finally:
            self._open -= 1
            if not self._open:
                self._idle.set()

    def __repr__(self) -> str:
        return f"<Chain {self.generation}: {' > '.join(entry.name for entry in self.entries)}>"


def _guarded(entry: Entry, hook: Callable[..., Any]) -> Hook:
    """Return the hook, wrapped where the entry has `on_error: ignore`: its exceptions other than `Refused` are only logged."""
    if entry.on_error == "refuse":
        return hook

    def guarded(*arguments: Any) -> None:
        try:
            hook(*arguments)
        except Refused:
            raise
        except BaseException as error:
            log.error("plugin_failed", **origin_of(error, entry.name, hook.__name__), exc_info=error)

    return guarded
