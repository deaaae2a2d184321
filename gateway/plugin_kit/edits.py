"""The checks of plugins that change the request or count by it, and of steps.

Steps that are planned twice have the same effect as once, and so do those of requests when they are sent twice.
"""

from __future__ import annotations

from typing import Any, Final

from gateway.base.errors import Refused
from gateway.chain.entry import PLUGIN_ERRORS
from gateway.chain.request_hooks import RequestHooks
from gateway.chat.request import Body
from gateway.domain.exchange import Exchange
from gateway.plugin_kit.finding import COMPLETED, Finding
from gateway.plugin_kit.scenarios import ScenarioRunner, store_snapshot
from gateway.store.client.steps import Step, error_in, run_steps, slot_tag

SIZES: Final = ("max_tokens", "prompt_tokens_bound", "prompt_tokens_estimate", "size")
"""What of a body says how much a request may use. A plugin that reads it in `on_request` decides or counts by it."""


class WatchedBody:
    """A body that notes which of its attributes are read."""

    def __init__(self, body: Body, read: set[str]) -> None:
        self._body = body
        self._read = read

    def __getattr__(self, name: str) -> Any:
        self._read.add(name)
        return getattr(self._body, name)


async def edits(runner: ScenarioRunner) -> Finding:
    """Return the finding on what a plugin changes, and on whether it says that it counts."""
    kind, problems, changed = type(runner.plugin), list[str](), list[str]()
    exchange = await runner.arrived(COMPLETED)
    before = await exchange.body()
    read: set[str] = set()
    exchange._body = WatchedBody(before, read)  # type: ignore[assignment]
    try:
        await runner.request(runner.plugin, exchange)
        changed = _changed(before, await exchange.body())
        sizes = [name for name in SIZES if name in read]
        if sizes and not (kind.counts or kind.edits):
            problems.append(
                f"`{runner.request_hook}` reads `{sizes[0]}` of the body: say `counts = True`, so that no plugin below changes the "
                "request afterwards"
            )
        problems += await _explained(runner, changed)
        runner.respond(exchange, COMPLETED)
        await runner.end(runner.plugin, exchange)
    except PLUGIN_ERRORS:
        pass  # found by the checks of a request and of its endings
    await runner.left(exchange)
    return Finding.of(
        "edits", problems, f"changes {', '.join(changed)}" if changed else "changes nothing of this request"
    )


async def _explained(runner: ScenarioRunner, changed: list[str]) -> list[str]:
    """Return what is wrong with what `explain` changes: it must be what `on_request` changes."""
    if not runner.entry.defines("explain") or not type(runner.plugin).edits:
        return []
    exchange: Exchange = await runner.arrived(COMPLETED)
    before = await exchange.body()
    exchange.hooks = RequestHooks(exchange, (), [runner.entry])
    await runner.plugin.explain(exchange)
    exchange.hooks = None
    explained = _changed(before, await exchange.body())
    await runner.left(exchange)
    if explained == changed:
        return []
    return [f"`explain` changes {', '.join(explained) or 'nothing'}, `on_request` {', '.join(changed) or 'nothing'}"]


def _changed(before: Body, after: Body) -> list[str]:
    """Return the names of the fields that differ."""
    names = {**before.top, **after.top}
    return [name for name in names if before.top.get(name) != after.top.get(name)]


async def step_problems(runner: ScenarioRunner) -> list[str]:
    """Return what is wrong with the steps that a plugin plans for a request and for its end."""
    plugin, problems = runner.plugin, list[str]()
    exchange = await runner.arrived(COMPLETED)
    try:
        if runner.entry.plans_request:
            first = await plugin.request_step(exchange)
            step = await plugin.request_step(exchange)
            if step is not None and step is first:
                problems.append("`request_step` returns one Step twice: make a new one for each request")
            problems += await _sent(runner, exchange.id, "request_step", step, times=2)
        else:
            await runner.request(plugin, exchange)
        runner.respond(exchange, COMPLETED)
        if runner.entry.plans_end:
            await plugin.end_step(exchange)
            problems += await _sent(runner, exchange.id, "end_step", await plugin.end_step(exchange))
        else:
            await runner.end(plugin, exchange)
    except Refused:
        return problems
    except PLUGIN_ERRORS as error:
        problems.append(f"{type(error).__name__}: {error}, where a step is planned or sent twice")
    finally:
        await runner.left(exchange)
    return problems


async def _sent(runner: ScenarioRunner, request_id: str, hook: str, step: Step | None, times: int = 1) -> list[str]:
    """Send a step, and again as after a lost reply; give the plugin the last reply. Return what was wrong."""
    if step is None:
        return []
    problems = list[str]()
    if len({slot_tag(key) for key in step.keys}) != 1:
        problems.append(f"the keys of `{hook}` are in several hash slots: put braces around the account in each")
    ((status, value),) = await run_steps(runner.client, [step])
    once = await store_snapshot(runner.client, request_id)
    for _ in range(times - 1):
        ((status, value),) = await run_steps(runner.client, [step])
    again = await store_snapshot(runner.client, request_id)
    problems += [
        f"`{hook}` changes {name} again when its step is sent again: use the request's id"
        for name in sorted(once.keys() | again.keys())
        if once.get(name) != again.get(name)
    ]
    if (error := error_in(status, value)) is not None:
        problems.append(f"the step of `{hook}` fails: {error}")
    elif step.read is not None and (reading := step.read(value)) is not None:
        await reading
    return problems
