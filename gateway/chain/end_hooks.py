"""The end hooks of one exchange, the steps that they plan, and the hooks that decide on a further attempt.

Hooks run in the reverse order of the list. Steps are collected, and sent together before the next `on_end`, and when all hooks
have run. The failure of one affects no other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

from gateway.base.errors import GatewayError, Refused, StoreAway, StoreError
from gateway.base.log import log
from gateway.chain.entry import Entry, is_cancellation, origin_of
from gateway.chain.plan import PlannedChain
from gateway.domain.exchange import Exchange
from gateway.store.client.client import Argument, Client
from gateway.store.client.steps import RAN, Reply, Step, error_in, in_one_slot, planned, ran, submit

Planned = tuple[Entry, Step]


async def run_end_hooks(
    exchange: Exchange, entered: list[Entry], client: Client, lost: GatewayError | None = None
) -> None:
    """Run the end hooks of all entries of `entered`, the last first. An entry is removed when its hook and step have ended.

    To cancel this means to give up what is waited for: the hooks of the other plugins still run. `lost`: the error of a plan that
    has sent the first steps already, and is not sent again.
    """
    hooks = EndHooks(exchange, client)
    hooks.lost = lost
    while entered:
        place = len(entered)
        while place and not entered[place - 1].waits_at_end:
            place -= 1
        await hooks.run([entry for entry in reversed(entered[place:]) if entry.plans_end])
        del entered[place:]
        if entered:
            entry = entered[-1]
            try:
                await entry.plugin.on_end(exchange)
            except BaseException as error:
                hooks.contain(entry, "on_end", error)
            if exchange.outcome is not hooks.outcome:
                hooks.take_back(entry, "on_end")
            entered.pop()


async def end_by_plan(exchange: Exchange, plan: PlannedChain, entered: list[Entry], client: Client) -> None:
    """Run the ends of a plan's parts, after the end hooks of the plugins below them.

    Where a part declines, or not all steps ran, the end hooks do all of it: what was sent has the same effect a second time.
    """
    replies: Sequence[Reply] | None = None
    lost: GatewayError | None = None
    rest = entered[len(plan.entries) :] if len(entered) > len(plan.entries) else None
    # Steps of others and those of the plan are one script, of the hooks.
    if not (rest and any(entry.plans_end for entry in rest)):
        if rest:
            await run_end_hooks(exchange, rest, client)
            del entered[len(plan.entries) :]
        try:
            if (values := _values(exchange, plan)) is not None:
                end, replies = plan.end, ()
                if end is not None:
                    replies = await client.send(end.command(exchange.request_id, values), end.script)
        except GatewayError as error:
            replies, lost = None, error
        except BaseException as error:
            replies = None
            EndHooks(exchange, client).contain(plan.entries[-1], "prepare", error)
    if replies is None or not _all_ran(plan, replies):
        await run_end_hooks(exchange, entered, client, lost)
        return
    outcome = exchange.outcome
    for place, (entry, read) in enumerate(plan.end_reads):
        try:
            read(exchange, replies[place][1])
        except BaseException as error:
            EndHooks(exchange, client).contain(entry, "prepare", error)
    if exchange.outcome is not outcome:
        EndHooks(exchange, client).take_back(plan.entries[-1], "prepare")
    entered.clear()


def _values(exchange: Exchange, plan: PlannedChain) -> list[Argument] | None:
    """Return what fills the ends of a plan's parts; None where one declines."""
    values: list[Argument] = []
    for fill in plan.end_fills:
        filled = fill(exchange)
        if filled is None:
            return None
        values += filled
    return values


def _all_ran(plan: PlannedChain, replies: Sequence[Reply]) -> bool:
    for status, value in replies:
        if status != RAN or isinstance(value, Exception):
            return False
    return len(replies) == len(plan.end_reads)


class EndHooks:
    """The steps that are planned at the end of an exchange."""

    __slots__ = ("_again", "_client", "_exchange", "_planned", "lost", "outcome")

    def __init__(self, exchange: Exchange, client: Client) -> None:
        self._exchange = exchange
        self.outcome = exchange.outcome
        self._client = client
        self._planned: list[Planned] = []
        self._again: list[Entry] = []
        """Those that plan again, by what a step has changed."""
        self.lost: GatewayError | None = None
        """The error of the first steps, which were sent already."""

    async def run(self, entries: list[Entry]) -> None:
        """Ask plugins for their steps, send them, and give each plugin its reply or its error.

        In a cluster, there is one script for each hash slot.
        """
        while entries or self._planned:
            for entry in entries:
                try:
                    step = await entry.plugin.end_step(self._exchange)
                    if step is not None:
                        self._planned.append((entry, planned(step)))
                except BaseException as error:
                    self.contain(entry, "end_step", error)
                if self._exchange.outcome is not self.outcome:
                    self.take_back(entry, "end_step")
            waiting, self._planned = self._planned, []
            scripts = [(batch, steps, self._submit(steps)) for batch, steps in self._batches(waiting)]
            for batch, steps, reply in scripts:
                await self._receive(batch, steps, reply)
            entries, self._again = self._again, []

    def _batches(self, waiting: Sequence[Planned]) -> Iterator[tuple[Sequence[Planned], Sequence[Step]]]:
        steps = [step for _, step in waiting]
        while steps:
            count = in_one_slot(self._client, steps)
            yield waiting[:count], steps[:count]
            waiting, steps = waiting[count:], steps[count:]

    def _submit(self, steps: Sequence[Step]) -> asyncio.Future[list[Reply]]:
        try:
            if self.lost is None:
                return submit(self._client, steps)
            lost, self.lost = self.lost, None
            raise lost
        except Exception as error:
            failed = asyncio.get_running_loop().create_future()
            failed.set_exception(error)
            return failed

    async def _receive(
        self, batch: Sequence[Planned], steps: Sequence[Step], reply: asyncio.Future[list[Reply]]
    ) -> None:
        """Read the reply of one script. Where one of several steps cannot be run, none was: each is sent by itself."""
        try:
            replies = ran(steps, await reply)
        except BaseException as error:
            if len(batch) > 1 and not is_cancellation(error) and not isinstance(error, StoreAway):
                for (entry, step), alone in [(one, self._submit([one[1]])) for one in batch]:
                    await self._receive([(entry, step)], [step], alone)
            else:
                await self._all_failed(batch, error)
        else:
            await self._read(batch, replies)

    async def _read(self, batch: Sequence[Planned], replies: Sequence[Reply]) -> None:
        """Read the replies of one script. Steps that it did not run are sent once more, or planned again."""
        again = False
        for (entry, step), (status, value) in zip(batch, replies, strict=False):
            again = False
            if (failure := error_in(status, value)) is not None:
                await self._fail(entry, step, failure)
            elif step.read is not None:
                try:
                    reading = step.read(value)
                    again = reading is not None and bool(await reading)
                except BaseException as error:
                    self.contain(entry, "end_step", error)
        for entry, step in batch[len(replies) :]:
            if again:
                self._again.append(entry)
            else:
                self._planned.append((entry, step))

    async def _all_failed(self, batch: Sequence[Planned], error: BaseException) -> None:
        if isinstance(error, GatewayError):
            failure = error
        else:
            cancelled = is_cancellation(error)
            self.contain(batch[0][0], "end_step", error)
            failure = StoreAway("the reply was not waited for") if cancelled else StoreError("the step cannot be sent")
        for entry, step in batch:
            await self._fail(entry, step, failure)

    async def _fail(self, entry: Entry, step: Step, failure: GatewayError) -> None:
        if step.failed is None:
            log.error("step_failed", plugin=entry.name, request_id=self._exchange.id, reason=str(failure))
            return
        try:
            await step.failed(failure)
        except BaseException as error:
            self.contain(entry, "end_step", error)

    def take_back(self, entry: Entry, hook: str) -> None:
        """Set the outcome as it was: by it, the caller gets the end of its answer."""
        self._exchange.outcome = self.outcome
        reason = "it assigned `exchange.outcome`, which only the gateway sets"
        log.error("plugin_failed", plugin=entry.name, hook=hook, request_id=self._exchange.id, reason=reason)

    def contain(self, entry: Entry, hook: str, error: BaseException) -> None:
        """Log the exception of a hook, or that the hook was given up. Raises an error that closes this coroutine."""
        if isinstance(error, GeneratorExit) and is_cancellation(error):
            raise error
        if is_cancellation(error) and (task := asyncio.current_task()) is not None:
            task.uncancel()
            log.error("plugin_hangs", plugin=entry.name, hook=hook, request_id=self._exchange.id)
        else:
            where = origin_of(error, entry.name, hook)
            log.error("plugin_failed", **where, request_id=self._exchange.id, exc_info=error)


async def may_fail_over(exchange: Exchange, entries: Sequence[Entry]) -> bool:
    """Return whether no plugin prevents a further attempt. One that does is logged: the caller gets the attempt's error."""
    for entry in entries:
        try:
            await entry.plugin.on_failover(exchange)
        except BaseException as error:
            if is_cancellation(error):
                raise
            if isinstance(error, Refused | StoreAway):
                reason = error.code if isinstance(error, Refused) else str(error)
                log.warning("failover_refused", plugin=entry.name, request_id=exchange.id, reason=reason)
            else:
                where = origin_of(error, entry.name, "on_failover")
                log.error("plugin_failed", **where, request_id=exchange.id, exc_info=error)
            if entry.on_error == "refuse" or isinstance(error, Refused):
                return False
    return True
