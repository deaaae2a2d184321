"""The request hooks of one exchange, and the steps that they plan.

Hooks run in the order of the list. Steps are collected, and sent together before the next `on_request`, and when all hooks have
run. What a plugin decides in `request_step` itself counts only once the steps above it have let the request pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

import structlog

from gateway.chain.entry import Entry
from gateway.chain.failures import is_cancellation
from gateway.errors import GatewayError, Refused
from gateway.exchange import Exchange, Reply
from gateway.plugin import Plugin
from gateway.store.client.client import Client
from gateway.store.client.retry import retried
from gateway.store.client.step import Step, StepReply, in_one_slot, run_steps

log = structlog.get_logger("gateway.chain")

Planned = tuple[int, Step]
"""The place of an entry in the list, and its step."""


class PlanAgain(Exception):
    """Ends a `request_step` that waits for the body, because a step above it says that plugins must plan again."""


class RequestHooks:
    """One run through the request hooks of `entries`. Each entry is appended to `entered` before its hook is called."""

    __slots__ = ("_again", "_client", "_entered", "_entries", "_exchange", "_planned", "_refusal")

    def __init__(self, exchange: Exchange, entries: Sequence[Entry], entered: list[Entry], client: Client) -> None:
        self._exchange = exchange
        self._entries: Final = entries
        self._entered = entered
        self._client = client
        self._planned: list[Planned] = []
        self._again: int | None = None
        self._refusal: BaseException | None = None

    async def run(self) -> Reply | None:
        """Run the hooks, each once; `request_step` again where a step above it says so. Return the reply of a plugin, if any.

        Raises what the first plugin raises that does not let the request pass.
        """
        self._exchange.before_body = self._before_body
        try:
            return await self._run()
        finally:
            self._exchange.before_body = None

    async def _run(self) -> Reply | None:
        entries, exchange, position = self._entries, self._exchange, 0
        while True:
            entry = entries[position] if position < len(entries) else None
            plans = entry is not None and _plans(entry)
            if self._planned and not plans:
                await self._send()
                if self._again is not None:
                    position, self._again = self._again, None
                    continue
            if entry is None:
                return None
            if position >= len(self._entered):
                self._entered.append(entry)
            if plans:
                position = await self._plan(entry, position)
                continue
            reply = await self._call(entry)
            if reply is not None:
                exchange.refused_by = entry.name if reply.status >= 400 else ""
                return reply
            position += 1

    async def _call(self, entry: Entry) -> Reply | None:
        try:
            return await entry.plugin.on_request(self._exchange)
        except BaseException as error:
            self._failed(entry, "on_request", error)
            return None

    async def _plan(self, entry: Entry, position: int) -> int:
        """Ask one plugin for its step. Return the place in the list at which to go on."""
        step, error = None, None
        try:
            step = await entry.plugin.request_step(self._exchange)
        except BaseException as raised:
            if is_cancellation(raised):
                raise
            error = raised
            if self._planned and self._refusal is None and self._again is None:
                await self._send()
        if self._refusal is not None:  # found before the body was read: the plugin may have caught it
            raise self._refusal
        if self._again is not None:
            again, self._again = self._again, None
            return again
        if error is not None:
            self._failed(entry, "request_step", error)
        elif step is not None:
            self._planned.append((position, step))
        return position + 1

    async def _before_body(self) -> None:
        if self._planned:
            try:
                await self._send()
            except BaseException as error:
                self._refusal = error
                raise
            if self._again is not None:
                raise PlanAgain

    async def _send(self) -> None:
        """Send the planned steps and read their replies. Raises what the first step raises that does not let the request pass.

        Sets `_again` to the place in the list from which the plugins must plan again.
        """
        planned, self._planned = self._planned, []
        while planned:
            count = in_one_slot(self._client, [step for _, step in planned])
            ran = await self._replies(planned[:count])
            if ran is None:
                planned = planned[count:]
                continue
            for (position, step), reply in zip(planned, ran, strict=False):
                if await self._read(self._entries[position], step, reply):
                    self._again = position + 1
                    return
            planned = planned[len(ran) :]

    async def _replies(self, planned: Sequence[Planned]) -> list[StepReply] | None:
        """Return the replies of the steps that ran; None after an error that all these entries ignore."""
        steps = [step for _, step in planned]
        try:
            return await retried(partial(run_steps, self._client, steps), self._client.timeout_s)
        except GatewayError as error:
            for position, _ in planned:
                self._failed(self._entries[position], "request_step", error)
            return None

    async def _read(self, entry: Entry, step: Step, reply: StepReply) -> bool:
        """Return whether the plugins below must plan again."""
        try:
            if reply.error is not None:
                raise reply.error
            again = step.read is not None and await step.read(reply.value)
            if again and not reply.stopped:
                raise RuntimeError("`read` wants plugins to plan again whose steps have run")
            return bool(again)
        except BaseException as error:
            self._failed(entry, "request_step", error)
            return False

    def _failed(self, entry: Entry, hook: str, error: BaseException) -> None:
        """Log an error that the entry ignores. Raises any other."""
        if is_cancellation(error):
            raise error
        if entry.on_error == "ignore" and not isinstance(error, Refused):
            log.error("plugin_failed", plugin=entry.name, hook=hook, request_id=self._exchange.id, exc_info=error)
            return
        self._exchange.refused_by = entry.name
        if not isinstance(error, Exception):
            raise RuntimeError(f"'{entry.name}' raised {type(error).__name__}") from error
        raise error


def _plans(entry: Entry) -> bool:
    return type(entry.plugin).request_step is not Plugin.request_step
