"""The chain: the plugins in their order, checked when it is built, started and stopped within limits of time, then run hook by
hook.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, cast

from gateway.base.errors import GatewayError, Misconfigured, Refused
from gateway.base.log import log
from gateway.chain.end_hooks import end_by_plan, run_end_hooks
from gateway.chain.entry import (
    END_HOOKS,
    REQUEST_HOOKS,
    Entry,
    api_of,
    describe_error,
    is_cancellation,
    may_answer,
    origin_of,
)
from gateway.chain.plan import PlannedChain, Plans
from gateway.chain.plugin import PLUGIN_API, StalePlan
from gateway.chain.request_hooks import RequestHooks
from gateway.chain.services import Services
from gateway.chat.dialect import Dialect
from gateway.config.channel import HEADER_VALUE, auth_of, check_headers
from gateway.config.decode import WrongSetting
from gateway.domain.exchange import COMPLETED, Exchange
from gateway.domain.facts import Caller, Route
from gateway.domain.reply import Reply
from gateway.operations.operation import MISDIRECTED
from gateway.store.client.client import Client

Hook = Callable[..., Any]
NamedHook = tuple[str, Hook]

START_LIMIT_S: Final = 20.0
"""How long all plugins together may take to start."""
STOP_LIMIT_S: Final = 3.0
"""How long all plugins together may take to stop."""
ABANDON_S: Final = 0.5
"""How long a hook that is cancelled may take to end."""

_PROVIDER: Final = "_provided_by"
"""Where a dialect keeps the name of its plugin, so that a failure of any of its methods can name it."""


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
        self._request_entries = tuple(entry for entry in self.entries if entry.defines(*REQUEST_HOOKS, *END_HOOKS))
        self.failover_entries = tuple(entry for entry in self.entries if entry.defines("on_failover"))
        self._misdirected_entries = tuple(entry for entry in self._request_entries if entry.plugin.sees_misdirected)
        self.plans: Plans | None = None
        """Those of requests whose first plugins prepare for them. Set by `start`, None where none does."""
        self.on_response = self._named("on_response")
        self.on_chunk = self._named("on_chunk")
        self.on_delta = self._named("on_delta")

    def _named(self, hook: str) -> tuple[NamedHook, ...]:
        entries = (entry for entry in self.entries if entry.defines(hook))
        return tuple((entry.name, _guarded(entry, getattr(entry.plugin, hook))) for entry in entries)

    def hooks_of(self, entered: Sequence[Entry]) -> Iterator[list[NamedHook]]:
        """Yield `on_response`, `on_chunk`, `on_delta`, by names, of the last that was entered, which answers, and those above."""
        names = {entry.name for entry in self.entries[: self.entries.index(entered[-1]) + 1]}
        for hooks in (self.on_response, self.on_chunk, self.on_delta):
            yield [(name, hook) for name, hook in hooks if name in names]

    async def start(
        self,
        services: Services,
        *,
        limit_s: float = START_LIMIT_S,
        starting: Callable[[Entry], None] = lambda entry: None,
    ) -> None:
        """Start every plugin, in `limit_s` together. If one fails, stop those that had started.

        `starting` is called before each one. A `ValueError` becomes `Misconfigured`. Any other exception becomes a
        `GatewayError`, because it may pass: a service that the plugin needs may not answer yet, and a service manager must go on
        restarting the gateway.

        Steps of requests use the connection for calls before the upstream, those of ends the one for settlements.
        """
        self._requests, self._ends = services.store.client, services.store.settling
        if not self._requests.sharded and self._request_entries and self._request_entries[0].defines("prepare"):
            self.plans = Plans(self._request_entries)
        deadline = time.monotonic() + limit_s
        for index, entry in enumerate(self.entries):
            starting(entry)
            try:
                entry.services = services.named(entry.name)
                if await _in_time(entry.plugin.start(entry.services), deadline):
                    continue
                raise GatewayError(str(entry.wrong(f"'{entry.name}' did not start within {limit_s:g} s")))
            except BaseException as error:
                await _close(entry, time.monotonic() + STOP_LIMIT_S)
                await _stop(self.entries[:index], STOP_LIMIT_S)
                if isinstance(error, GatewayError) or is_cancellation(error):
                    raise
                if isinstance(error, ValueError):
                    raise entry.wrong(f"'{entry.name}' does not start: {error}") from None
                text = f"'{entry.name}' does not start: {describe_error(error)}"
                raise GatewayError(str(entry.wrong(text))) from None

    async def stop(self, *, limit_s: float = STOP_LIMIT_S) -> None:
        """Stop every plugin, last first, in `limit_s` together. What takes longer is cancelled and logged."""
        await _stop(self.entries, limit_s)

    async def idle(self) -> None:
        """Wait until no exchange is between its request hooks and its end hooks."""
        while self._open > 0:
            self._idle.clear()
            await self._idle.wait()

    async def request(self, exchange: Exchange, entered: list[Entry]) -> Reply | None:
        """Run the request hooks. Every entry that is entered is appended to `entered`, also one that refuses."""
        self._open += 1
        misdirected = exchange.request.operation is MISDIRECTED
        entries = self._misdirected_entries if misdirected else self._request_entries
        hooks = RequestHooks(exchange, entries, entered, self._requests)
        plans = self.plans if exchange.whole else None
        if plans is None:
            return await hooks.run()
        place = 0
        plan: PlannedChain | None = None
        if (found := plans.of_caller(exchange)) is not None:
            exchange.facts[Caller], of_caller = found  # whose share of the memory the body takes
            try:
                body = await exchange.body()
                plan = of_caller.get((exchange.request.operation, body.model))
            except (GatewayError, ConnectionError):
                plan = None  # the hooks find it, in their order
            del exchange.facts[Caller]  # until the guard of the plan has said that it is still so
        if plan is not None:
            try:
                place = await hooks.run_plan(plan, body)
            except StalePlan:
                plans.forget(plan)
                plan = None
        reply = await hooks.run(place) if place < len(entries) else None
        if plan is None:
            if reply is None:
                plans.add(exchange)
        elif place == len(plan.entries):
            exchange.facts[PlannedChain] = plan
        return reply

    async def end(self, exchange: Exchange, entered: list[Entry]) -> None:
        """Run the end hooks of all entries that were entered. An exception of one does not affect the others.

        An entry is removed from `entered` when its hook has ended: the last one is the one whose hook runs.

        To cancel this means to give up the hook that is running: those of the other plugins still run.
        """
        try:
            plan = exchange.facts.get(PlannedChain)
            if plan is None or exchange.outcome is not COMPLETED:
                await run_end_hooks(exchange, entered, self._ends)
            else:
                await end_by_plan(exchange, plan, entered, self._ends)
        finally:
            self._open -= 1
            if not self._open:
                self._idle.set()


def _guarded(entry: Entry, hook: Callable[..., Any]) -> Hook:
    """Return the hook, wrapped where the entry has `on_error: ignore`: its exceptions other than `Refused` are only logged."""
    if entry.on_error == "refuse":
        return hook

    def guarded(*arguments: Any) -> Any:
        try:
            return hook(*arguments)
        except Refused:
            raise
        except BaseException as error:
            log.error("plugin_failed", **origin_of(error, entry.name, hook.__name__), exc_info=error)
            return None

    return guarded


def check_order(entries: Sequence[Entry]) -> None:
    """Raise `Misconfigured` for a list that cannot work.

    A fact is required that no plugin above provides, or a plugin changes requests below one that counts them.
    """
    provided: set[type] = set()
    for index, entry in enumerate(entries):
        for fact in entry.plugin.requires:
            if fact not in provided:
                raise entry.wrong(_cure(entry.name, fact, entries[index + 1 :]))
        if entry.on_error == "ignore":
            needed = {fact for other in entries[index + 1 :] for fact in other.plugin.requires} | {Route}
            for fact in needed.intersection(entry.plugin.provides):
                raise entry.wrong(
                    f"'{entry.name}' provides {fact.__name__}, which is needed: remove its `on_error: ignore`"
                )
        provided.update(entry.plugin.provides)
        if entry.plugin.edits:
            _check_editor(entry, entries[:index])
    if Route not in provided:
        wrong = entries[-1].wrong if entries else Misconfigured
        raise wrong("nothing in the chain provides Route: add `- use: model-routing` as the last plugin")


def warnings(entries: Sequence[Entry]) -> list[str]:
    """Return a sentence for each allowed setting of the plugins that is probably a mistake."""
    undeclared = (
        f"`{entry.name}` does not say which API of plugins it is made for: write `API = {PLUGIN_API}` in its class"
        for entry in entries
        if api_of(type(entry.plugin)) is None
    )
    return [*_unrecorded(entries), *_answered_above_routing(entries), *_answered_above_changes(entries), *undeclared]


def _unrecorded(entries: Sequence[Entry]) -> Iterator[str]:
    for index, entry in enumerate(entries):
        if entry.plugin.sees_misdirected and index > 0:
            above = ", ".join(f"`{other.name}`" for other in entries[:index])
            yield f"`{entry.name}` is below {above}: requests refused there leave no record; move it to the top"
            return


def _answered_above_routing(entries: Sequence[Entry]) -> Iterator[str]:
    routing = next((index for index, entry in enumerate(entries) if Route in entry.plugin.provides), 0)
    for entry in entries[:routing]:
        if may_answer(type(entry.plugin)):
            name = entries[routing].name
            yield (
                f"`{entry.name}` answers requests above `{name}`: it answers also for models that the caller may not use; "
                f"move it below `{name}`"
            )


def _answered_above_changes(entries: Sequence[Entry]) -> Iterator[str]:
    for index, entry in enumerate(entries):
        if entry.defines("on_delta") and (
            names := [each.name for each in entries[:index] if may_answer(type(each.plugin))]
        ):
            yield f"`{entry.name}` does not change what `{names[0]}` above it answers: move `{entry.name}` above it"


def _check_editor(entry: Entry, above: Sequence[Entry]) -> None:
    """Raise `Misconfigured` for a plugin that changes requests below one that has counted, held money or routed by them."""
    for other in above:
        if other.plugin.counts or Route in other.plugin.provides:
            raise entry.wrong(
                f"'{entry.name}' changes the request below '{other.name}', which decides by what it says: "
                f"move '{entry.name}' above '{other.name}'"
            )


def _cure(name: str, fact: type, below: Sequence[Entry]) -> str:
    problem = f"'{name}' needs {fact.__name__}, which nothing above it provides"
    for entry in below:
        if fact in entry.plugin.provides:
            return f"{problem}: move '{entry.name}' above '{name}'"
    return f"{problem}: add a plugin that provides it above '{name}'"


async def _stop(entries: Sequence[Entry], limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    for entry in reversed(entries):
        try:
            if entry.services is not None and not await _in_time(entry.services.end_tasks(), deadline):
                log.error("plugin_hangs", plugin=entry.name, hook="every")
            if not await _in_time(entry.plugin.stop(), deadline):
                log.error("plugin_hangs", plugin=entry.name, hook="stop")
        except BaseException as error:
            if is_cancellation(error):
                raise
            log.error("plugin_failed", **origin_of(error, entry.name, "stop"), exc_info=error)
        finally:
            await _close(entry, deadline)


async def _close(entry: Entry, deadline: float) -> None:
    """End the work that a plugin began with its services."""
    services, entry.services = entry.services, None
    if services is not None and not await _in_time(services.close(), deadline):
        log.error("plugin_hangs", plugin=entry.name, hook="every")


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
    """Run a hook and return its exception: a task that raises `SystemExit` or `KeyboardInterrupt` would end the event loop."""
    try:
        await hook
    except BaseException as error:
        if is_cancellation(error):
            raise
        return RuntimeError("it was cancelled") if isinstance(error, asyncio.CancelledError) else error
    return None


def provider_of(dialect: Dialect) -> str:
    """Return the name of the plugin that provides a dialect, or of the dialect's class where it is in no chain."""
    return str(vars(dialect).get(_PROVIDER, type(dialect).__name__))


def wrong_attribute(dialect: Dialect) -> str:
    """Return the fault in the attributes of a dialect, by which its requests are addressed; empty for none."""
    name, path, headers = dialect.name, getattr(dialect, "path", None), dialect.headers
    if not isinstance(name, str) or not name:
        return "`name` must be a text, which channels have under `dialect:`"
    if not isinstance(path, str) or not path.startswith("/") or not path.isascii() or not path.isprintable():
        return "`path` must be a text that begins with /, as in `/messages`"
    if not isinstance(headers, Mapping):
        return "`headers` must be a mapping of names to values"
    if not all(isinstance(text, str) for pair in headers.items() for text in pair):
        return "`headers` must have texts alone"
    if not (
        isinstance(dialect.streams, tuple) and dialect.streams and all(map(HEADER_VALUE.fullmatch, dialect.streams))
    ):
        return '`streams` must be a tuple of media types, such as `("application/x-ndjson",)`'
    try:
        check_headers(headers, auth_of(str(dialect.auth)), has_credentials=True)
    except WrongSetting as error:
        return f"`{'.'.join(map(str, error.key_path))}` is wrong: {error}"
    return ""


def dialects_of(entries: Iterable[Entry]) -> Mapping[str, Dialect]:
    """Return the dialects by name. Raises `Misconfigured` for a name that two plugins provide, and for an unusable dialect."""
    found: dict[str, Dialect] = {}
    for entry in entries:
        for kind in entry.plugin.dialects:
            try:
                dialect = kind()
                name = dialect.name
            except Exception as error:
                raise entry.wrong(f"'{entry.name}' has a dialect that cannot be made: {type(error).__name__}") from None
            if wrong := wrong_attribute(dialect):
                raise entry.wrong(f"'{entry.name}' has the dialect `{type(dialect).__name__}`, whose {wrong}")
            if name in found:
                raise entry.wrong(f"'{entry.name}' provides the dialect `{name}`, as a plugin above does: keep one")
            vars(dialect)[_PROVIDER] = entry.name
            found[name] = dialect
    return found
