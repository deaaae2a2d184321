"""The checks that need a plugin to run: one plugin, on a store of its own, beside installed plugins that provide its facts.

`explain` takes nothing, passes what the request hook passes, and sets the facts that the plugin provides.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from gateway.base.errors import GatewayError
from gateway.chain.chain import START_LIMIT_S, STOP_LIMIT_S
from gateway.chain.entry import PLUGIN_ERRORS, defined_hooks, describe_error
from gateway.chain.loading import installed, plugin_class
from gateway.chain.plugin import Plugin
from gateway.chain.request_hooks import RequestHooks
from gateway.chain.services import Services
from gateway.config.decode import convert
from gateway.config.document import Document
from gateway.plugin_kit import scenarios
from gateway.plugin_kit.edits import edits, step_problems
from gateway.plugin_kit.finding import (
    COMPLETED,
    INCOMPLETE,
    MISDIRECTED,
    MODELS,
    Finding,
    HookTimeout,
    an,
    failed,
    limited,
    told,
)
from gateway.plugin_kit.leaks import Printed, leaked, log_to
from gateway.plugin_kit.scenarios import ScenarioResult, ScenarioRunner, memory_snapshot
from gateway.plugin_kit.streams import dialects, streams

MAX_LOST_REPLIES: Final = 12
"""At how many waits of `on_request`, at most, the replies are lost; each is a scenario."""
GROWTH_EXCHANGES: Final = 24
"""A container that grows by one for each of these exchanges is taken to grow for ever."""
BACKGROUND_LIMIT_S: Final = 2.0


class PluginTrial:
    """The check of one plugin. `given` is what it is started with, `headers` and `body` are those of every request."""

    def __init__(
        self,
        kind: type[Plugin],
        settings: Mapping[str, object],
        given: Services,
        headers: Mapping[str, str],
        body: Mapping[str, object],
    ) -> None:
        self.kind = kind
        self.settings = settings
        self.given = given
        self.headers = headers
        self.body = body
        self.lines: list[str] = []
        """What the plugin logs and prints."""
        self.background: list[Callable[[], Awaitable[None]]] = []
        """The functions that the plugin gave to `every`."""
        given.log = log_to(self.lines)
        self._services: dict[int, Services] = {}
        self._stop_problems: list[str] = []

    async def run(self) -> list[Finding]:
        """Run all checks. Stop at the first of `start` and `request` that does not pass."""
        with Printed(self.lines) as printed:
            plugin, findings = await self._run()
        if findings[0].passed:
            leaks = list(leaked(plugin, self.lines, self.headers))
            findings.append(Finding.of("secrets", leaks, "none in `repr`, log or output"))
            if leaks:
                return findings
        printed.show()
        return findings

    async def _run(self) -> tuple[Plugin, list[Finding]]:
        plugin = self._new_plugin()
        try:
            providers = [kind() for kind in providers_for(self.kind)]
            for each in (*providers, plugin):
                await self._start(each)
        except Exception as error:
            for services in self._services.values():
                await services.close()
            return plugin, [Finding("start", False, f"does not start: {_why(error)}")]
        runner = ScenarioRunner(plugin, providers, self.given.redis, self.headers, self.body)
        completed = await runner.run(COMPLETED)
        findings = [Finding("start", True, "starts with these settings"), await self._request(runner, completed)]
        if not findings[1].passed:
            await self._stop(plugin)
        else:
            findings += await self._endings(runner, completed)
            findings.append(await self._reload(runner))
        for provider in providers:
            await self._stop(provider)
        return plugin, [*findings, Finding.of("stop", self._stop_problems, "ends in time")]

    async def _request(self, runner: ScenarioRunner, completed: ScenarioResult) -> Finding:
        problems = list(completed.problems)
        if (refused := completed.refused) is not None and not problems:
            why = f"{refused.status} {refused.code}: {refused}"
            problems.append(
                f"refused the request of this check ({why}): give settings or a header with which it accepts the request"
                if completed.failure is None
                else f"the step of `{runner.request_hook}` fails: {completed.failure}"
            )
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
            await streams(runner),
            await dialects(runner.plugin),
        ]

    async def _growth(self, runner: ScenarioRunner) -> list[str]:
        """Return what grows in memory, or loses free slots, with every exchange, also where the functions of `every` have run."""
        crowd = ScenarioRunner(runner.plugin, runner.providers, self.given.redis, self.headers, self.body, store=False)
        endings = (COMPLETED, *INCOMPLETE)
        before = memory_snapshot(runner.plugin)
        for index in range(GROWTH_EXCHANGES):
            await crowd.run(endings[index % len(endings)])
        for function in self.background:
            with suppress(*PLUGIN_ERRORS):
                await limited("every", function(), BACKGROUND_LIMIT_S)
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
            reloaded = ScenarioRunner(new, runner.providers, self.given.redis, self.headers, self.body)
            problems += (await reloaded.run(COMPLETED)).problems
            await self._stop(new)
        except Exception as error:
            problems.append(f"a second instance beside the first one: {told(error).removeprefix('raised ')}")
        return Finding.of("reload", problems, "a second instance started beside the first one, which stopped")

    def _new_plugin(self) -> Plugin:
        return convert(Document(Path("--with")), (), dict(self.settings), self.kind)

    async def _start(self, plugin: Plugin) -> None:
        services = self._services[id(plugin)] = self.given.named("check")
        if isinstance(plugin, self.kind) and not self.background:
            self._watch(services)
        await limited("start", plugin.start(services), START_LIMIT_S)

    def _watch(self, services: Services) -> None:
        every = services.every

        def noted(seconds: float, function: Callable[[], Awaitable[None]]) -> None:
            every(seconds, function)
            self.background.append(function)

        services.every = noted  # type: ignore[method-assign]

    async def _stop(self, plugin: Plugin) -> None:
        """Stop a plugin as a chain does, and note what is wrong."""
        services = self._services.pop(id(plugin))
        steps = (("every", services.end_tasks), ("stop", plugin.stop), ("every", services.close))
        for hook, step in steps:
            try:
                await limited(hook, step(), STOP_LIMIT_S)
            except PLUGIN_ERRORS as error:
                self._stop_problems.append(failed(hook, error))


def _why(error: Exception) -> str:
    """Return why a plugin does not start."""
    if isinstance(error, HookTimeout):
        return failed("start", error)
    return str(error) if isinstance(error, ValueError | GatewayError) else describe_error(error)


def _name(result: ScenarioResult) -> str:
    if result.ending.lost_from is not None:
        return f"the replies from wait {result.ending.lost_from + 1} of `on_request` on were lost"
    return result.ending.name


def _summary(results: list[ScenarioResult]) -> str:
    lost = sum(result.ending.lost_from is not None for result in results)
    refused = sum(result.refused is not None and result.ending.lost_from is None for result in results)
    text = f"{len(results)} other endings, {lost} of them with lost replies"
    return f"{text}; {refused} refused by the plugin itself" if refused else text


async def explain_problems(runner: ScenarioRunner) -> list[str]:
    """Return what is wrong with how the plugin explains a request that its `on_request` accepts."""
    exchange = await runner.arrived(COMPLETED)
    before = await runner.snapshot(exchange)
    exchange.hooks = RequestHooks(exchange, (), [runner.entry])
    try:
        text = await limited("explain", runner.plugin.explain(exchange), scenarios.HOOK_TIMEOUT_S)
    except PLUGIN_ERRORS as error:
        return [f"`explain` {told(error)}, where `on_request` passes"]
    if not isinstance(text, str | None):
        return [f"`explain` returns {an(text)}: return a sentence, or None"]
    after = await runner.snapshot(exchange)
    await runner.left(exchange)
    changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    missing = [fact.__name__ for fact in type(runner.plugin).provides if text is not None and fact not in exchange]
    return [f"`explain` changes {name}" for name in changed] + [f"`explain` does not set {name}" for name in missing]


def providers_for(kind: type[Plugin], above: Sequence[type[Plugin]] = ()) -> list[type[Plugin]]:
    """Return the plugins that must be above `kind`, in the order of the chain, after those that are there already.

    Raises `ValueError` if no installed plugin provides a required fact.
    """
    chosen = list(above)
    for fact in kind.requires:
        if any(fact in other.provides for other in chosen):
            continue
        for name in sorted(installed()):
            with suppress(ValueError):
                other = plugin_class(name)
                if fact in other.provides and other is not kind:
                    chosen = [*providers_for(other, chosen), other]
                    break
        else:
            raise ValueError(
                f"it requires {fact.__name__}, which no installed plugin provides: install the one that does"
            )
    return chosen
