"""The checks of steps: planned twice or sent twice, they have the same effect as once, and their keys are in one hash slot."""

from __future__ import annotations

from gateway.chain.failures import PLUGIN_ERRORS
from gateway.contract.endings import COMPLETED
from gateway.contract.scenarios import ScenarioRunner
from gateway.errors import GatewayError, Refused
from gateway.store.client.step import Step, error_in, run_steps, slot_tag


async def step_problems(runner: ScenarioRunner) -> list[str]:
    """Return what is wrong with the steps that a plugin plans for a request and for its end."""
    plugin, problems = runner.plugin, list[str]()
    exchange = await runner.arrived(COMPLETED)
    try:
        if runner.entry.plans_request:
            await plugin.request_step(exchange)
            step = await plugin.request_step(exchange)
            problems += await _sent_twice(runner, exchange.id, "request_step", step)
        else:
            await runner.request(plugin, exchange)
        runner.respond(exchange, COMPLETED)
        if runner.entry.plans_end:
            await plugin.end_step(exchange)
            step = await plugin.end_step(exchange)
            problems += await _sent_twice(runner, exchange.id, "end_step", step)
        else:
            await runner.end(plugin, exchange)
    except Refused:
        return problems
    except PLUGIN_ERRORS as error:
        problems.append(f"{type(error).__name__}: {error}, where a step is planned or sent twice")
    finally:
        await runner.left(exchange)
    return problems


async def _sent_twice(runner: ScenarioRunner, request_id: str, hook: str, step: Step | None) -> list[str]:
    """Send a step as after a lost reply. Return what the second time changes; then hand the plugin its reply."""
    if step is None:
        return []
    problems = []
    if len({slot_tag(key) for key in step.keys}) != 1:
        problems.append(f"the keys of `{hook}` are in several hash slots: put braces around the account in each")
    await run_steps(runner.client, [step])
    once = await runner.stored(request_id)
    ((status, value),) = await run_steps(runner.client, [step])
    twice = await runner.stored(request_id)
    problems += [
        f"`{hook}` changes {name} again when its step is sent again: use the request's id"
        for name in sorted(once.keys() | twice.keys())
        if once.get(name) != twice.get(name)
    ]
    error = error_in(status, value)
    if isinstance(error, GatewayError):
        problems.append(f"the step of `{hook}` fails: {error}")
    elif step.read is not None:
        await step.read(value)
    return problems
