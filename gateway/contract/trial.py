"""The checks that need a plugin to run: one plugin, on a store of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from gateway.chain.failures import PLUGIN_ERRORS, describe_error
from gateway.chain.hooks import defined_hooks
from gateway.config.decode import convert
from gateway.config.document import Document
from gateway.contract.awaits import Unawaited
from gateway.contract.background import Background
from gateway.contract.blocking import Blocking
from gateway.contract.cost import MAX_CALLS
from gateway.contract.dialects import dialects
from gateway.contract.edits import edits
from gateway.contract.endings import COMPLETED, INCOMPLETE, MISDIRECTED, MODELS
from gateway.contract.explains import explain_problems
from gateway.contract.finding import Finding
from gateway.contract.leaks import CapturedLog, Printed, leaked
from gateway.contract.providers import providers_for
from gateway.contract.scenario_result import ScenarioResult
from gateway.contract.scenarios import ScenarioRunner
from gateway.contract.snapshot import memory_snapshot
from gateway.contract.steps import not_async, step_problems
from gateway.contract.streams import streams
from gateway.errors import GatewayError
from gateway.plugin import Plugin
from gateway.services import Services

MAX_LOST_REPLIES: Final = 12
"""At how many waits of `on_request`, at most, the replies are lost; each is a scenario."""
GROWTH_EXCHANGES: Final = 24
"""A container that grows by one for each of these exchanges is taken to grow for ever."""

EXECUTOR: Final = "asyncio_"
"""What the names of asyncio's own threads begin with: `asyncio.to_thread` starts them, and they end with the process."""


class Trial:
    """The trial of one plugin. `given` is what it is started with, `headers` are those of every request."""

    def __init__(
        self, kind: type[Plugin], settings: Mapping[str, object], given: Services, headers: Mapping[str, str]
    ) -> None:
        self.kind = kind
        self.settings = settings
        self.given = given
        self.headers = headers
        self.log = CapturedLog()
        self.blocking = Blocking(kind)
        self.background = Background()
        given.log = self.log.logger
        self._services: dict[int, Services] = {}

    async def run(self) -> list[Finding]:
        """Run all checks. Stop at the first of `start` and `request` that does not pass."""
        with Printed(self.log.lines) as printed, Unawaited(self.kind) as unawaited:
            plugin, findings = await self._run()
        if findings[0].passed:
            leaks = list(leaked(plugin, self.log.lines, self.headers))
            findings.append(Finding.of("awaits", unawaited.problems, "all that it begins"))
            findings.append(Finding.of("secrets", leaks, "none in `repr`, log or output"))
            if leaks:
                return findings
        printed.show()
        return findings

    async def _run(self) -> tuple[Plugin, list[Finding]]:
        plugin = self._new_plugin()
        tasks, threads = asyncio.all_tasks(), set(threading.enumerate())
        try:
            providers = [kind() for kind in providers_for(self.kind)]
            for each in (*providers, plugin):
                await self._start(each)
        except (ValueError, GatewayError) as error:
            await self._close_all()
            return plugin, [Finding("start", False, f"does not start: {error}")]
        except PLUGIN_ERRORS as error:
            await self._close_all()
            return plugin, [Finding("start", False, f"does not start: {describe_error(error)}")]
        runner = ScenarioRunner(plugin, providers, self.given.redis, self.headers)
        runner.blocking = self.blocking
        completed = await runner.run(COMPLETED)
        findings = [Finding("start", True, "starts with these settings"), await self._request(runner, completed)]
        if not findings[1].passed:
            await self._stop(plugin)
        else:
            findings += await self._endings(runner, completed)
            findings.append(await self._reload(runner))
        for provider in providers:
            await self._stop(provider)
        findings.append(await self._stopped(tasks, threads))
        return plugin, findings

    async def _request(self, runner: ScenarioRunner, completed: ScenarioResult) -> Finding:
        problems = list(completed.problems)
        if problems and (sync := await not_async(runner)):
            problems = sync
        if (refused := completed.refused) is not None and not problems:
            why = f"{refused.status} {refused.code}: {refused}"
            problems.append(
                f"refused the request of this check ({why}): give settings or a header with which it accepts the request"
                if completed.failure is None
                else f"the step of `{runner.request_hook}` fails: {completed.failure}"
            )
        problems += self.blocking.take()
        problems += [f"`{runner.request_hook}` did not set {fact}, which it provides" for fact in completed.missing]
        return Finding.of("request", problems, "accepts a request, and sets what it provides")

    async def _endings(self, runner: ScenarioRunner, completed: ScenarioResult) -> list[Finding]:
        endings = [*INCOMPLETE, MODELS, *([MISDIRECTED] if self.kind.sees_misdirected else [])]
        endings += [
            msgspec.structs.replace(INCOMPLETE[0], lost_from=wait)
            for wait in range(min(completed.waits, MAX_LOST_REPLIES))
        ]
        results = [await runner.run(ending) for ending in endings]
        problems = [problem for result in results for problem in result.problems]
        without_body = [result for result in results if result.ending.method == "GET"]
        if any(result.refused and result.refused.code == "invalid_json" for result in without_body):
            problems.append(
                "reads the body of requests that have none: look at `exchange.request.operation` before `body()`"
            )
        problems += self.blocking.take()
        taken = completed.taken()
        not_given_back = [f"{name} after: {_name(result)}" for result in results for name in sorted(result.left(taken))]
        not_given_back += await self._growth(runner)
        return [
            Finding.of("ends", problems, _summary(results)),
            Finding.of("gives back", not_given_back, ", ".join(sorted(taken)) or "takes nothing"),
            Finding.of("steps", await step_problems(runner), "may be planned and sent twice")
            if runner.entry.plans_request or runner.entry.plans_end
            else Finding("steps", True, "no steps"),
            Finding.of("explains", await explain_problems(runner), "takes nothing")
            if "explain" in defined_hooks(self.kind)
            else Finding("explains", True, "no `explain`: `gateway explain` cannot say what the plugin would do"),
            await edits(runner),
            Finding.of(
                "chunks", runner.cost.problems(), f"at most {runner.cost.max_calls} calls of {MAX_CALLS} allowed"
            )
            if "on_chunk" in defined_hooks(self.kind)
            else Finding("chunks", True, "no `on_chunk`"),
            await streams(runner),
            Finding.of(
                "background",
                await self.background.problems(self.blocking),
                f"{len(self.background.functions)} functions",
            ),
            dialects(runner.plugin),
        ]

    async def _growth(self, runner: ScenarioRunner) -> list[str]:
        """Return what grows in memory, or loses free slots, with every exchange."""
        crowd = ScenarioRunner(runner.plugin, runner.providers, self.given.redis, self.headers, store=False)
        endings = (COMPLETED, *INCOMPLETE)
        before = memory_snapshot(runner.plugin)
        for index in range(GROWTH_EXCHANGES):
            await crowd.run(endings[index % len(endings)])
        after = memory_snapshot(runner.plugin)
        changes = {name: abs(after[name] - before.get(name, 0)) for name in sorted(after)}
        return [
            f"{name} changed by {change:g} in {GROWTH_EXCHANGES} exchanges"
            for name, change in changes.items()
            if name.startswith(("the size", "free slots")) and change >= GROWTH_EXCHANGES
        ]

    async def _reload(self, runner: ScenarioRunner) -> Finding:
        """Start a new instance beside the old one, stop the old one, and send a request through the new one."""
        new = self._new_plugin()
        problems: list[str] = []
        try:
            await self._start(new)
            await self._stop(runner.plugin)
            reloaded = ScenarioRunner(new, runner.providers, self.given.redis, self.headers)
            problems += (await reloaded.run(COMPLETED)).problems
            await self._stop(new)
        except PLUGIN_ERRORS as error:
            problems.append(f"a second instance beside the first one: {type(error).__name__}: {error}")
        return Finding.of("reload", problems, "a second instance started beside the first one, which stopped")

    def _new_plugin(self) -> Plugin:
        return convert(Document(Path("--with")), (), dict(self.settings), self.kind)

    async def _start(self, plugin: Plugin) -> None:
        services = self._services[id(plugin)] = self.given.named("check")
        if isinstance(plugin, self.kind) and not self.background.functions:
            self.background.watch(services)
        with self.blocking:
            await plugin.start(services)

    async def _close_all(self) -> None:
        for services in self._services.values():
            await services.close()

    async def _stop(self, plugin: Plugin) -> None:
        """Stop a plugin as a chain does."""
        services = self._services.pop(id(plugin))
        await services.end_tasks()
        with self.blocking:
            await plugin.stop()
        await services.close()

    async def _stopped(self, tasks: set[asyncio.Task[Any]], threads: set[threading.Thread]) -> Finding:
        left = asyncio.all_tasks() - tasks
        if left:
            _, left = await asyncio.wait(left, timeout=1)
        problems = [
            f"{task.get_name()} still runs `{task.get_coro()}`: cancel it in `stop`, and wait for it" for task in left
        ]
        started = set(threading.enumerate()) - threads
        problems += [f"thread {thread.name} still runs" for thread in started if not thread.name.startswith(EXECUTOR)]
        for task in left:
            task.cancel()
        return Finding.of("stop", [*problems, *self.blocking.take()], "no task and no thread is left")


def _name(result: ScenarioResult) -> str:
    if result.ending.lost_from is not None:
        return f"the replies from wait {result.ending.lost_from + 1} of `on_request` on were lost"
    return result.ending.name


def _summary(results: list[ScenarioResult]) -> str:
    lost = sum(result.ending.lost_from is not None for result in results)
    refused = sum(result.refused is not None and result.ending.lost_from is None for result in results)
    text = f"{len(results)} other endings, {lost} of them with lost replies"
    return f"{text}; {refused} refused by the plugin itself" if refused else text
