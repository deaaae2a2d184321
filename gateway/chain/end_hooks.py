"""The end hooks of one exchange, and the steps that they plan.

Hooks run in the reverse order of the list. Steps are collected, and sent together before the next `on_end`, and when all hooks
have run. The failure of one affects no other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator, Sequence
from typing import Any, TypeVar

import structlog

from gateway.chain.entry import Entry
from gateway.chain.failures import is_cancellation
from gateway.errors import GatewayError, StoreAway
from gateway.exchange import Exchange
from gateway.store.client.client import Client
from gateway.store.client.step import Step, StepReply, in_one_slot, read_replies, submit

log = structlog.get_logger("gateway.chain")

Result = TypeVar("Result")
Planned = tuple[Entry, Step]


async def run_end_hooks(exchange: Exchange, entered: list[Entry], client: Client) -> None:
    """Run the end hooks of all entries of `entered`, the last first. An entry is removed when its hook and step have ended.

    To cancel this means to give up what is waited for: the hooks of the other plugins still run.
    """
    hooks = EndHooks(exchange, client)
    while entered:
        position = len(entered)
        while position and not entered[position - 1].defines("on_end"):
            position -= 1
            await hooks.plan(entered[position])
        await hooks.send()
        del entered[position:]
        if entered:
            await hooks.contain(entered[-1], "on_end", entered[-1].plugin.on_end(exchange))
            entered.pop()


class EndHooks:
    """The steps that are planned at the end of an exchange."""

    __slots__ = ("_client", "_exchange", "_planned")

    def __init__(self, exchange: Exchange, client: Client) -> None:
        self._exchange = exchange
        self._client = client
        self._planned: list[Planned] = []

    async def plan(self, entry: Entry) -> None:
        """Ask one plugin for its step, if it has any."""
        if entry.defines("end_step"):
            step = await self.contain(entry, "end_step", entry.plugin.end_step(self._exchange))
            if step is not None:
                self._planned.append((entry, step))

    async def send(self) -> None:
        """Send the planned steps, and give each plugin its reply or its error. In a cluster, one script for each hash slot."""
        while self._planned:
            planned, self._planned = self._planned, []
            scripts = [(batch, submit(self._client, [step for _, step in batch])) for batch in self._batches(planned)]
            for batch, reply in scripts:
                await self._finish(batch, reply)

    def _batches(self, planned: Sequence[Planned]) -> Iterator[Sequence[Planned]]:
        while planned:
            count = in_one_slot(self._client, [step for _, step in planned])
            yield planned[:count]
            planned = planned[count:]

    async def _finish(self, batch: Sequence[Planned], reply: asyncio.Future[Any]) -> None:
        """Read what one script returns. Steps that it did not run are sent once more, or planned again."""
        try:
            ran = read_replies([step for _, step in batch], await reply)
        except BaseException as error:
            failure = error if isinstance(error, GatewayError) else StoreAway("the reply was not waited for")
            if failure is not error:
                self._contained(batch[0][0], "end_step", error)
            ran = [StepReply(None, False, failure)] * len(batch)
        again = False
        for (entry, step), result in zip(batch, ran, strict=False):
            again = await self._read(entry, step, result)
        for entry, step in batch[len(ran) :]:
            if again:
                await self.plan(entry)
            else:
                self._planned.append((entry, step))

    async def _read(self, entry: Entry, step: Step, reply: StepReply) -> bool:
        """Return whether the plugins above must plan again."""
        if reply.error is None:
            return step.read is not None and bool(await self.contain(entry, "end_step", step.read(reply.value)))
        if step.failed is not None:
            await self.contain(entry, "end_step", step.failed(reply.error))
        else:
            log.error("step_failed", plugin=entry.name, request_id=self._exchange.id, reason=str(reply.error))
        return False

    async def contain(self, entry: Entry, hook: str, work: Awaitable[Result]) -> Result | None:
        """Return what a hook returns; None where it fails or is given up, which is logged."""
        try:
            return await work
        except BaseException as error:
            self._contained(entry, hook, error)
            return None

    def _contained(self, entry: Entry, hook: str, error: BaseException) -> None:
        """Log an error. Raises one that closes this coroutine."""
        if isinstance(error, GeneratorExit) and is_cancellation(error):
            raise error
        if is_cancellation(error) and (task := asyncio.current_task()) is not None:
            task.uncancel()
            log.error("plugin_hangs", plugin=entry.name, hook=hook, request_id=self._exchange.id)
        else:
            log.error("plugin_failed", plugin=entry.name, hook=hook, request_id=self._exchange.id, exc_info=error)
