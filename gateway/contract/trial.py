"""One plugin on a store of its own, tried by running it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from gateway.config.decode import convert
from gateway.config.document import Document
from gateway.contract.cost import MOST_CALLS
from gateway.contract.declared import defined
from gateway.contract.endings import EARLY, MISDIRECTED, MODELS, WHOLE
from gateway.contract.finding import Finding
from gateway.contract.leaks import Log, shown
from gateway.contract.providers import above
from gateway.contract.scenarios import ScenarioResult, ScenarioRunner
from gateway.contract.snapshot import in_memory
from gateway.errors import GatewayError
from gateway.plugin import Plugin
from gateway.services import Services

MOST_WAITS: Final = 12
"""In so many places at most does the store go away."""
CROWD: Final = 24
"""So many exchanges tell growth from chance."""


class Trial:
    """One plugin on a store of its own."""

    def __init__(
        self, kind: type[Plugin], settings: Mapping[str, object], given: Services, headers: Mapping[str, str]
    ) -> None:
        self.kind = kind
        self.settings = settings
        self.given = given
        self.headers = headers
        self.log = Log()
        given.log = self.log.logger

    async def run(self) -> list[Finding]:
        """All that needs the plugin to run."""
        plugin = self._made()
        tasks, threads = asyncio.all_tasks(), set(threading.enumerate())
        try:
            providers = [kind() for kind in above(self.kind)]
            for each in (*providers, plugin):
                await self._start(each)
        except (ValueError, GatewayError) as error:
            return [Finding("start", False, f"does not start: {error}")]
        stage = ScenarioRunner(plugin, providers, self.given.redis, self.headers)
        whole = await stage.live(WHOLE)
        findings = [Finding("start", True, "starts with these settings"), self._served(whole)]
        if not findings[1].passed:
            await plugin.stop()
        else:
            findings += await self._lives(stage, whole)
            findings.append(await self._reload(stage))
        for provider in providers:
            await provider.stop()
        findings.append(await _ended(tasks, threads))
        return [*findings, Finding.of("secrets", shown(plugin, self.log.lines, self.headers), "none in `repr` or log")]

    def _served(self, whole: ScenarioResult) -> Finding:
        problems = list(whole.problems)
        if whole.refused is not None:
            problems.append(
                f"refused the request of this check ({whole.refused.status} {whole.refused.code}: {whole.refused}): "
                "give settings, or a header, with which it lets one through"
            )
        problems += [f"`on_request` did not set {fact}, which it provides" for fact in whole.missing]
        return Finding.of("request", problems, "lets one through, and sets what it provides")

    async def _lives(self, stage: ScenarioRunner, whole: ScenarioResult) -> list[Finding]:
        kinds = [*EARLY, MODELS, *([MISDIRECTED] if self.kind.sees_misdirected else [])]
        kinds += [msgspec.structs.replace(EARLY[0], loses=wait) for wait in range(min(whole.waits, MOST_WAITS))]
        lived = [await stage.live(ending) for ending in kinds]
        ends = [problem for life in lived for problem in life.problems]
        if any(life.refused and life.refused.code == "invalid_json" for life in lived if life.ending.method == "GET"):
            ends.append("reads the body of requests that have none: look at `exchange.request.operation` first")
        taken = whole.taken()
        kept = [f"{name} after: {_names(life)}" for life in lived for name in sorted(life.left(taken))]
        kept += await self._growth(stage)
        return [
            Finding.of("ends", ends, _counted(lived)),
            Finding.of("gives back", kept, ", ".join(sorted(taken)) or "takes nothing"),
            Finding.of("explains", await stage.explained(), "takes nothing")
            if "explain" in defined(self.kind)
            else Finding("explains", True, "does not: `gateway explain` cannot tell what it would do"),
            Finding.of("chunks", stage.cost.problems(), f"{stage.cost.most} calls at most, of {MOST_CALLS}")
            if "on_chunk" in defined(self.kind)
            else Finding("chunks", True, "does not look"),
        ]

    async def _growth(self, stage: ScenarioRunner) -> list[str]:
        """What an exchange leaves behind in memory, however it ends."""
        crowd = ScenarioRunner(stage.plugin, stage.above, self.given.redis, self.headers, store=False)
        before = in_memory(stage.plugin)
        for index in range(CROWD):
            await crowd.live((WHOLE, *EARLY)[index % (1 + len(EARLY))])
        after = in_memory(stage.plugin)
        return [
            f"{name} changed by {abs(after[name] - before.get(name, 0)):g} in {CROWD} exchanges"
            for name in sorted(after)
            if name.startswith(("the size", "free places")) and abs(after[name] - before.get(name, 0)) >= CROWD
        ]

    async def _reload(self, stage: ScenarioRunner) -> Finding:
        """A new instance starts beside the old one, the old one stops, the new one serves on."""
        new = self._made()
        problems: list[str] = []
        try:
            await self._start(new)
            await stage.plugin.stop()
            problems += (await ScenarioRunner(new, stage.above, self.given.redis, self.headers).live(WHOLE)).problems
            await new.stop()
        except Exception as error:
            problems.append(f"a second instance beside the first one: {type(error).__name__}: {error}")
        return Finding.of("reload", problems, "a second instance started beside the first one, which stopped")

    def _made(self) -> Plugin:
        return convert(Document(Path("--with")), (), dict(self.settings), self.kind)

    async def _start(self, plugin: Plugin) -> None:
        await plugin.start(self.given.named("check"))


async def _ended(tasks: set[asyncio.Task[Any]], threads: set[threading.Thread]) -> Finding:
    left = asyncio.all_tasks() - tasks
    if left:
        _, left = await asyncio.wait(left, timeout=1)
    problems = [
        f"{task.get_name()} still runs `{task.get_coro()}`: cancel it in `stop`, and wait for it" for task in left
    ]
    problems += [f"thread {thread.name} still runs" for thread in set(threading.enumerate()) - threads]
    for task in left:
        task.cancel()
    return Finding.of("stop", problems, "no task and no thread is left")


def _names(life: ScenarioResult) -> str:
    if life.ending.loses is not None:
        return f"the replies from wait {life.ending.loses + 1} of `on_request` on were lost"
    return life.ending.name


def _counted(lived: list[ScenarioResult]) -> str:
    lost = sum(life.ending.loses is not None for life in lived)
    refused = sum(life.refused is not None and life.ending.loses is None for life in lived)
    text = f"{len(lived)} other lives, {lost} with lost replies"
    return f"{text}; {refused} refused by the plugin itself" if refused else text
