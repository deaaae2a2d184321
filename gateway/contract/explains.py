"""The check of a plugin's `explain`: it takes nothing, passes what the request hook passes, and sets what it provides."""

from __future__ import annotations

from gateway.chain.editing import ExplainHooks
from gateway.chain.failures import PLUGIN_ERRORS
from gateway.contract import scenarios
from gateway.contract.contained import Ended, contained
from gateway.contract.endings import COMPLETED
from gateway.contract.scenarios import ScenarioRunner
from gateway.contract.words import an, told


async def explain_problems(runner: ScenarioRunner) -> list[str]:
    """Return what is wrong with how the plugin explains a request that its `on_request` accepts."""
    exchange = await runner.arrived(COMPLETED)
    before = await runner.snapshot(exchange)
    exchange.hooks = ExplainHooks(runner.entry)
    try:
        text = await contained(runner.plugin.explain(exchange), scenarios.HOOK_TIMEOUT_S)
    except PLUGIN_ERRORS as error:
        place = f" ({error.at})" if isinstance(error, Ended) and error.at else ""
        return [f"`explain` {told(error)}, where `on_request` passes{place}"]
    if not isinstance(text, str | None):
        return [f"`explain` returns {an(text)}: return a sentence, or None"]
    after = await runner.snapshot(exchange)
    await runner.left(exchange)
    changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    missing = [fact.__name__ for fact in type(runner.plugin).provides if text is not None and fact not in exchange]
    return [f"`explain` changes {name}" for name in changed] + [f"`explain` does not set {name}" for name in missing]
