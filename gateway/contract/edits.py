"""The checks of plugins that change the request, and of those that count by what it says."""

from __future__ import annotations

from typing import Any, Final

from gateway.chain.editing import ExplainHooks
from gateway.chain.failures import PLUGIN_ERRORS
from gateway.chat.request import Body
from gateway.contract.endings import COMPLETED
from gateway.contract.finding import Finding
from gateway.contract.scenarios import ScenarioRunner
from gateway.exchange import Exchange

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
    exchange.hooks = ExplainHooks(runner.entry)
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
