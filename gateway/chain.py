"""The chain: the plugins in their order, checked when it is built, then run hook by hook."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from traceback import extract_tb
from typing import Any, Final, Literal

import msgspec
import structlog

from gateway.errors import GatewayError, Misconfigured, Refused
from gateway.exchange import Exchange, Operation, Reply
from gateway.facts import Route
from gateway.plugin import Plugin
from gateway.services import Services

PLUGIN_ERRORS: Final = (Exception, SystemExit)
"""What a plugin may raise without ending the process: `SystemExit`, as of `sys.exit()`, would end the worker."""

START_LIMIT_S: Final = 20.0
"""How long all plugins together may take to start."""
STOP_LIMIT_S: Final = 3.0
"""How long all plugins together may take to stop."""
ABANDON_S: Final = 0.5
"""How long a hook that is cancelled may take to end."""

log = structlog.get_logger("gateway.chain")


class Step(msgspec.Struct, frozen=True):
    """A plugin and its place in the list."""

    name: str
    plugin: Plugin
    on_error: Literal["refuse", "ignore"] = "refuse"
    wrong: Callable[[str], Misconfigured] = Misconfigured
    """Makes an error about this step. For a step from a file it names the place there."""

    def defines(self, hook: str) -> bool:
        """Return whether the plugin defines `hook`."""
        return getattr(type(self.plugin), hook) is not getattr(Plugin, hook)


class Chain:
    """The plugins in order. Hooks are collected when the chain is built: one that no plugin defines costs nothing.

    Raises `Misconfigured` where a plugin requires a fact that no plugin above it provides. The message names the cure.
    """

    def __init__(self, steps: Sequence[Step], *, generation: int = 1) -> None:
        self.steps = tuple(steps)
        self.generation = generation
        self._open = 0
        self._idle = asyncio.Event()
        _check_order(self.steps)
        self._request_steps = tuple(step for step in self.steps if step.defines("on_request") or step.defines("on_end"))
        self.on_response = tuple(
            _guarded(step, step.plugin.on_response) for step in self.steps if step.defines("on_response")
        )
        self.on_chunk = tuple(_guarded(step, step.plugin.on_chunk) for step in self.steps if step.defines("on_chunk"))

    async def start(
        self,
        services: Services,
        *,
        limit_s: float = START_LIMIT_S,
        starting: Callable[[Step], None] = lambda step: None,
    ) -> None:
        """Start every plugin, in `limit_s` together. If one fails, stop those that had started.

        `starting` is called before each one.

        A `ValueError` becomes `Misconfigured`. Any other exception becomes a `GatewayError`, because it may pass: a service
        that the plugin needs may not answer yet, and a service manager must go on restarting the gateway.
        """
        deadline = time.monotonic() + limit_s
        for index, step in enumerate(self.steps):
            starting(step)
            try:
                if await _in_time(step.plugin.start(services.named(step.name)), deadline):
                    continue
                raise GatewayError(str(step.wrong(f"'{step.name}' did not start within {limit_s:g} s")))
            except BaseException as error:
                await _stop(self.steps[:index])
                if isinstance(error, GatewayError) or is_cancellation(error):
                    raise
                if isinstance(error, ValueError):
                    raise step.wrong(f"'{step.name}' does not start: {error}") from None
                raise GatewayError(str(step.wrong(f"'{step.name}' does not start: {describe_error(error)}"))) from None

    async def stop(self, *, limit_s: float = STOP_LIMIT_S) -> None:
        """Stop every plugin, last first, in `limit_s` together. What takes longer is cancelled and logged."""
        await _stop(self.steps, limit_s)

    async def idle(self) -> None:
        """Wait until no exchange is between its request hooks and its end hooks."""
        while self._open > 0:
            self._idle.clear()
            await self._idle.wait()

    async def request(self, exchange: Exchange, entered: list[Step]) -> Reply | None:
        """Run the request hooks. Every step that is entered is appended to `entered`, also one that refuses."""
        self._open += 1
        misdirected = exchange.request.operation is Operation.MISDIRECTED
        for step in self._request_steps:
            if misdirected and not step.plugin.sees_misdirected:
                continue
            entered.append(step)
            try:
                reply = await step.plugin.on_request(exchange)
            except BaseException as error:
                if is_cancellation(error):
                    raise
                if step.on_error == "ignore" and not isinstance(error, Refused):
                    log.exception("plugin_failed", plugin=step.name, hook="on_request", request_id=exchange.id)
                    continue
                exchange.refused_by = step.name
                if not isinstance(error, Exception):
                    raise RuntimeError(f"'{step.name}' raised {type(error).__name__}") from error
                raise
            if reply is not None:
                exchange.refused_by = step.name if reply.status >= 400 else ""
                return reply
        return None

    async def end(self, exchange: Exchange, entered: list[Step]) -> None:
        """Run the end hooks of all steps that were entered. An exception of one does not affect the others.

        A step is removed from `entered` when its hook has ended: the last one is the one whose hook runs.

        To cancel this means to give up the hook that is running: those of the other plugins still run.
        """
        while entered:
            step = entered[-1]
            try:
                await step.plugin.on_end(exchange)
            except BaseException as error:
                if isinstance(error, GeneratorExit) and is_cancellation(error):
                    raise
                if is_cancellation(error) and (task := asyncio.current_task()) is not None:
                    task.uncancel()
                    log.error("plugin_hangs", plugin=step.name, hook="on_end", request_id=exchange.id)
                else:
                    log.exception("plugin_failed", plugin=step.name, hook="on_end", request_id=exchange.id)
            entered.pop()
        self._open -= 1
        if not self._open:
            self._idle.set()

    def __repr__(self) -> str:
        return f"<Chain {self.generation}: {' > '.join(step.name for step in self.steps)}>"


def warnings(steps: Sequence[Step]) -> list[str]:
    """Return what is allowed and probably a mistake, in words."""
    for index, step in enumerate(steps):
        if step.plugin.sees_misdirected and index > 0:
            above = ", ".join(f"`{other.name}`" for other in steps[:index])
            return [f"`{step.name}` is below {above}: requests refused there leave no record; move it to the top"]
    return []


async def _stop(steps: Sequence[Step], limit_s: float = STOP_LIMIT_S) -> None:
    deadline = time.monotonic() + limit_s
    for step in reversed(steps):
        try:
            if not await _in_time(step.plugin.stop(), deadline):
                log.error("plugin_hangs", plugin=step.name, hook="stop")
        except BaseException as error:
            if is_cancellation(error):
                raise
            log.exception("plugin_failed", plugin=step.name, hook="stop")


async def _in_time(hook: Coroutine[Any, Any, None], deadline: float) -> bool:
    """Run a hook until the deadline, and return whether it ended. Otherwise it is cancelled, and not waited for long."""
    task = asyncio.ensure_future(_contained(hook))
    try:
        await asyncio.wait([task], timeout=max(ABANDON_S, deadline - time.monotonic()))
        if not task.done():
            task.cancel()
            await asyncio.wait([task], timeout=ABANDON_S)
            return False
    except asyncio.CancelledError:
        task.cancel()
        raise
    if (error := task.result()) is not None:
        raise error
    return True


async def _contained(hook: Coroutine[Any, Any, None]) -> BaseException | None:
    """Return what a hook raised: a task that raises `SystemExit` or `KeyboardInterrupt` would end the event loop."""
    try:
        await hook
    except BaseException as error:
        if is_cancellation(error):
            raise
        return RuntimeError("it was cancelled") if isinstance(error, asyncio.CancelledError) else error
    return None


def describe_error(error: BaseException) -> str:
    """Return the type, the text and the place of an exception that a plugin did not mean for the operator."""
    place = extract_tb(error.__traceback__)[-1]
    return f"{error_text(error)} ({place.filename}, line {place.lineno})"


def error_text(error: BaseException) -> str:
    """Return the type and the text of an exception. A plugin's own exception may fail at giving its text."""
    try:
        return f"{type(error).__name__}: {error}"
    except BaseException:
        return type(error).__name__


def is_cancellation(error: BaseException) -> bool:
    """Return whether this task itself is cancelled, not only a future that a plugin waited for, or is being closed.

    A coroutine that is closed runs in no task, unlike a plugin that raises `GeneratorExit`.
    """
    try:
        task = asyncio.current_task()
    except RuntimeError:  # there is no event loop any more
        task = None
    if isinstance(error, GeneratorExit):
        return task is None
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


def _check_order(steps: Sequence[Step]) -> None:
    provided: set[type] = set()
    for index, step in enumerate(steps):
        for fact in step.plugin.requires:
            if fact not in provided:
                raise step.wrong(_cure(step.name, fact, steps[index + 1 :]))
        if step.on_error == "ignore":
            needed = {fact for other in steps[index + 1 :] for fact in other.plugin.requires} | {Route}
            for fact in needed.intersection(step.plugin.provides):
                raise step.wrong(
                    f"'{step.name}' provides {fact.__name__}, which is needed: remove its `on_error: ignore`"
                )
        provided.update(step.plugin.provides)
    if Route not in provided:
        wrong = steps[-1].wrong if steps else Misconfigured
        raise wrong("nothing in the chain provides Route: add `- use: model-routing` as the last plugin")


def _cure(name: str, fact: type, below: Sequence[Step]) -> str:
    problem = f"'{name}' needs {fact.__name__}, which nothing above it provides"
    for step in below:
        if fact in step.plugin.provides:
            return f"{problem}: move '{step.name}' above '{name}'"
    return f"{problem}: add a plugin that provides it above '{name}'"


def _guarded(step: Step, hook: Callable[..., Any]) -> Callable[..., None]:
    """Return the hook, wrapped so that its exceptions are only logged where the step has `on_error: ignore`."""
    if step.on_error == "refuse":
        return hook

    def guarded(*arguments: Any) -> None:
        try:
            hook(*arguments)
        except BaseException:
            log.exception("plugin_failed", plugin=step.name, hook=hook.__name__)

    return guarded
