"""Steps that plugins plan for requests, failovers and ends."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import pytest
import structlog
from structlog.testing import capture_logs

from gateway import Exchange, Plugin, Refused, Script, Step
from gateway.base.errors import StoreAway, StoreError
from gateway.chain.chain import Chain
from gateway.chain.end_hooks import may_fail_over
from gateway.chain.entry import Entry, wrong_hooks
from gateway.store.client.client import Client
from gateway.store.embedded import EmbeddedStore
from gateway.testing import exchange
from tests.chain.planners import APPEND, FAIL, KEY, STOP, WRONG_STEPS, Planner, Reads, Waiter, passes, ran, started
from tests.patience import PATIENCE_S, wait_until
from tests.place import Place

# Steps of requests are sent together, decide in the order of the list, and are planned again where their plan was wrong.
CLOSED = Refused(403, "closed", "Come back later.")
WRONG = Refused(401, "wrong", "Another token.")


async def refuse(_: Exchange, reply: Any) -> bool | None:
    raise CLOSED


async def again(_: Exchange, reply: Any) -> bool | None:
    return True


async def request(chain: Chain, of: Exchange) -> tuple[list[str], BaseException | None]:
    """Return the names of the entries that were entered, and what was raised."""
    entered: list[Entry] = []
    try:
        await chain.request(of, entered)
    except Exception as error:
        return [entry.name for entry in entered], error
    return [entry.name for entry in entered], None


def planners(calls: list[str], *names: str) -> list[Planner]:
    return [Planner(name=name, calls=calls) for name in names]


async def test_steps_are_sent_as_one_script(place: Place, client: Client) -> None:
    calls: list[str] = []
    async with started(*place, planners(calls, "a", "b", "c")) as (chain, _):
        before = (await client.call("INFO", "commandstats")).get("cmdstat_eval", {}).get("calls", 0)
        assert await request(chain, exchange()) == (["a", "b", "c"], None)
        assert calls == ["a plans", "b plans", "c plans", "a reads", "b reads", "c reads"]
        assert await ran(client) == ["a", "b", "c"]
        stats = await client.call("INFO", "commandstats")
        scripts = stats["cmdstat_evalsha"]["calls"] + stats.get("cmdstat_eval", {}).get("calls", 0) - before
        await request(chain, exchange())
        stats = await client.call("INFO", "commandstats")
        assert stats["cmdstat_evalsha"]["calls"] + stats["cmdstat_eval"]["calls"] - before == scripts + 1


async def test_steps_are_sent_before_a_plugin_that_waits(place: Place) -> None:
    calls: list[str] = []
    a, b, c = planners(calls, "a", "b", "c")
    async with started(*place, [a, b, Waiter(name="w", calls=calls), c]) as (chain, _):
        assert await request(chain, exchange()) == (["a", "b", "w", "c"], None)
    assert calls == ["a plans", "b plans", "a reads", "b reads", "w finds ['a', 'b']", "c plans", "c reads"]


async def test_what_is_below_a_refusal_is_neither_run_nor_entered(place: Place, client: Client) -> None:
    calls: list[str] = []
    a, b, c = planners(calls, "a", "b", "c")
    b.script, b.reads = STOP, refuse
    of = exchange()
    async with started(*place, [a, b, c, Waiter(name="w", calls=calls)]) as (chain, _):
        assert await request(chain, of) == (["a", "b", "c"], CLOSED)
    assert (of.refused_by, of.hooks, await ran(client)) == ("b", None, ["a", "b"])
    assert [plugin.step.may_have_run for plugin in (a, b, c)] == [True, True, False]


@pytest.mark.parametrize("first_refuses", [True, False])
async def test_a_decision_of_a_plugin_counts_after_the_steps_above_it(
    place: Place, client: Client, first_refuses: bool
) -> None:
    a, b = planners([], "a", "b")
    a.reads = refuse if first_refuses else a.reads

    async def wrong(_: Exchange) -> None:
        raise WRONG

    b.does = wrong
    of = exchange()
    async with started(*place, [a, b]) as (chain, _):
        assert await request(chain, of) == (["a", "b"], CLOSED if first_refuses else WRONG)
    assert (of.refused_by, await ran(client)) == ("a" if first_refuses else "b", ["a"])


async def test_plugins_below_a_wrong_plan_plan_again_once(place: Place, client: Client) -> None:
    calls: list[str] = []
    a, b, c, d = planners(calls, "a", "b", "c", "d")
    b.script, b.reads = STOP, again
    async with started(*place, [a, b, c, d]) as (chain, _):
        assert await request(chain, exchange()) == (["a", "b", "c", "d"], None)
    assert calls[4:] == ["a reads", "b reads", "c plans", "d plans", "c reads", "d reads"]
    assert await ran(client) == ["a", "b", "c", "d"]


async def test_a_refusal_that_rests_on_a_wrong_plan_is_decided_again(place: Place, client: Client) -> None:
    a, b = planners([], "a", "b")
    known = ["wrong"]

    async def learn(_: Exchange, reply: Any) -> bool:
        known[0] = "right"
        return True

    async def decide(_: Exchange) -> None:
        if known[0] == "wrong":
            raise WRONG

    a.script, a.reads, b.does = STOP, learn, decide
    async with started(*place, [a, b]) as (chain, _):
        assert await request(chain, exchange()) == (["a", "b"], None)
    assert await ran(client) == ["a", "b"]


@pytest.mark.parametrize(("script", "reads", "run"), [(STOP, passes, ["a"]), (APPEND, again, ["a", "b", "c"])])
async def test_to_stop_the_steps_below_without_a_refusal_or_to_plan_again_what_has_run_is_an_error(
    place: Place, client: Client, script: Script, reads: Reads, run: list[str]
) -> None:
    a, b, c = planners([], "a", "b", "c")
    a.script, a.reads = script, reads
    of = exchange()
    async with started(*place, [a, b, c]) as (chain, _):
        _, error = await request(chain, of)
    assert (type(error), of.refused_by) == (RuntimeError, "a")
    assert await ran(client) == run


async def test_steps_below_one_that_stops_run_where_its_error_is_ignored(place: Place, client: Client) -> None:
    a, b, c = planners([], "a", "b", "c")
    a.script = STOP
    async with started(*place, [a, b, c], ignore=["a"]) as (chain, _):
        assert await request(chain, exchange()) == (["a", "b", "c"], None)
    assert await ran(client) == ["a", "b", "c"]


REFUSED_STEPS = WRONG_STEPS | {"what fails": lambda: Step(FAIL, [KEY], ["b"])}


@pytest.mark.parametrize("wrong", list(REFUSED_STEPS))
async def test_what_cannot_be_sent_is_the_error_of_its_plugin(place: Place, client: Client, wrong: str) -> None:
    a, b, c = planners([], "a", "b", "c")
    b.makes = REFUSED_STEPS[wrong]
    of = exchange()
    async with started(*place, [a, b, c]) as (chain, _):
        _, error = await request(chain, of)
    assert isinstance(error, StoreError if wrong == "what fails" else Exception)
    assert of.refused_by == "b"
    assert await ran(client) == ["a"]


@pytest.mark.parametrize("wrong", list(REFUSED_STEPS))
async def test_what_cannot_be_sent_is_passed_over_where_that_is_ignored(
    place: Place, client: Client, wrong: str
) -> None:
    a, b, c = planners([], "a", "b", "c")
    b.makes = REFUSED_STEPS[wrong]
    with capture_logs() as logs:
        async with started(*place, [a, b, c], ignore=["b"]) as (chain, _):
            assert await request(chain, exchange()) == (["a", "b", "c"], None)
    assert await ran(client) == ["a", "c"]
    assert [(line["event"], line["plugin"]) for line in logs] == [("plugin_failed", "b")]


async def test_a_step_that_was_returned_before_is_an_error(place: Place) -> None:
    a, b = planners([], "a", "b")
    step = Step(APPEND, [KEY], ["b"])
    b.makes = lambda: step
    async with started(*place, [a, b]) as (chain, _):
        assert await request(chain, exchange()) == (["a", "b"], None)
        of = exchange()
        _, error = await request(chain, of)
    assert (type(error), of.refused_by) == (TypeError, "b")


class TestBeforeABodyIsRead:
    """The gateway awaits `hooks.before_body` for a body that is large or has not arrived."""

    @pytest.mark.parametrize("catches", [True, False])
    async def test_a_refusal_spares_the_body(self, place: Place, catches: bool) -> None:
        a, b = planners([], "a", "b")
        a.reads = refuse
        read: list[str] = []

        async def wait(of: Exchange) -> None:
            assert of.hooks is not None
            try:
                await of.hooks.before_body()
            except Refused:
                if not catches:
                    raise
            read.append("body")

        b.does = wait
        of = exchange()
        async with started(*place, [a, b]) as (chain, _):
            assert await request(chain, of) == (["a", "b"], CLOSED)
        assert (of.refused_by, read) == ("a", ["body"] if catches else [])

    @pytest.mark.parametrize("catches", [True, False])
    async def test_a_wrong_plan_is_mended_first(self, place: Place, client: Client, catches: bool) -> None:
        calls: list[str] = []
        a, b, c = planners(calls, "a", "b", "c")
        a.script, a.reads = STOP, again

        async def wait(of: Exchange) -> None:
            assert of.hooks is not None
            try:
                await of.hooks.before_body()
            except Exception:
                if not catches:
                    raise
            calls.append("c reads the body")

        c.does = wait
        async with started(*place, [a, b, c]) as (chain, _):
            assert await request(chain, exchange()) == (["a", "b", "c"], None)
        caught = ["c reads the body"] if catches else []
        assert calls == [
            *("a plans", "b plans", "c plans", "a reads", *caught, "b plans", "c plans", "b reads"),
            *("c reads the body", "c reads"),
        ]
        assert await ran(client) == ["a", "b", "c"]


class TestErrors:
    @pytest.mark.parametrize(("ignore", "by"), [("", "a"), ("a", "b"), ("ab", "")])
    async def test_a_store_that_is_away_refuses_in_the_name_of_the_first_that_needs_it(
        self, tmp_path: Path, ignore: Sequence[str], by: str
    ) -> None:
        of = exchange()
        a, b = planners([], "a", "b")
        async with started(tmp_path, f"unix://{tmp_path}/nothing", [a, b], ignore=ignore) as (chain, given):
            given.store.client.timeout_s = 0.1
            _, error = await request(chain, of)
        assert (type(error), of.refused_by) == ((StoreAway, by) if by else (type(None), ""))
        assert a.step.may_have_run
        assert b.step.may_have_run

    async def test_what_reading_a_reply_raises_is_contained(self, place: Place) -> None:
        async def crash(_: Exchange, reply: Any) -> bool | None:
            raise SystemExit(3)

        a, b = planners([], "a", "b")
        a.reads = crash
        of = exchange()
        async with started(*place, [a, b]) as (chain, _):
            _, error = await request(chain, of)
        assert (type(error), str(error), of.refused_by) == (RuntimeError, "'a' raised SystemExit", "a")


class Both(Planner):
    """Defines both forms of a hook."""

    async def on_end(self, exchange: Exchange) -> None: ...


def test_a_plugin_has_one_form_of_each_hook() -> None:
    (found,) = wrong_hooks(Both)
    assert found.startswith("`on_end` and `end_step` are both defined: keep one of them (")


# Steps of ends are sent together, in reverse order; every plugin learns what became of its own.
def end_hooks_planners(calls: list[str], *names: str) -> list[Planner]:
    return [Planner(name=name, calls=calls, failures=[]) for name in names]


async def end(chain: Chain, *plugins: Planner | Waiter) -> None:
    entered = [Entry(plugin.name, plugin) for plugin in plugins]
    await chain.end(exchange(), entered)
    assert entered == []


async def test_steps_run_in_reverse_order_in_one_script(place: Place, client: Client) -> None:
    plugins = end_hooks_planners([], "a", "b", "c")
    async with started(*place, plugins) as (chain, _):
        await end(chain, *plugins)
        before = await client.call("INFO", "commandstats")
        await end(chain, *plugins)
        after = await client.call("INFO", "commandstats")
    assert after["cmdstat_evalsha"]["calls"] == before["cmdstat_evalsha"]["calls"] + 1
    assert await ran(client) == 2 * ["end of c", "end of b", "end of a"]


async def test_a_plugin_that_waits_finds_what_the_steps_below_it_did(place: Place, client: Client) -> None:
    calls: list[str] = []
    a, b = end_hooks_planners(calls, "a", "b")
    plugins: Sequence[Planner | Waiter] = (a, Waiter(name="w", calls=calls), b)
    async with started(*place, plugins) as (chain, _):
        await end(chain, *plugins)
    assert calls == ["b plans the end", "w finds ['end of b'] at the end", "a plans the end"]
    assert await ran(client) == ["end of b", "end of a"]


@pytest.mark.parametrize("again", [True, False])
async def test_steps_after_one_that_stops_run_next_planned_again_where_it_says_so(
    place: Place, client: Client, again: bool
) -> None:
    async def reads(_: Exchange, reply: Any) -> bool:
        return again

    calls: list[str] = []
    plugins = end_hooks_planners(calls, "a", "b", "c")
    plugins[2].end_script, plugins[2].ends = STOP, reads
    async with started(*place, plugins) as (chain, _):
        await end(chain, *plugins)
    assert await ran(client) == ["end of c", "end of b", "end of a"]
    planned = ["c plans the end", "b plans the end", "a plans the end"]
    assert calls == planned + (planned[1:] if again else [])


async def test_a_step_that_fails_affects_no_other(place: Place, client: Client) -> None:
    plugins = end_hooks_planners([], "a", "b", "c")
    plugins[1].end_script = FAIL
    async with started(*place, plugins) as (chain, _):
        await end(chain, *plugins)
    assert await ran(client) == ["end of c", "end of a"]
    assert [plugin.failures for plugin in plugins] == [[], ["b: ERR broken"], []]


async def test_without_a_store_every_plugin_learns_it(tmp_path: Path) -> None:
    plugins = end_hooks_planners([], "a", "b")
    async with started(tmp_path, f"unix://{tmp_path}/nothing", plugins) as (chain, given):
        for client in (given.store.client, given.store.settling):
            client._topology._timeout_s = 0.1
        await end(chain, *plugins)
    assert all(len(plugin.failures) == 1 and "store" in plugin.failures[0] for plugin in plugins)


async def test_an_error_in_any_part_is_logged_with_its_plugin(place: Place, client: Client) -> None:
    async def crash(_: Exchange, reply: Any) -> bool:
        raise SystemExit(3)

    plugins = end_hooks_planners([], "a", "b")
    plugins[1].ends = crash
    with capture_logs() as logs:
        async with started(*place, plugins) as (chain, _):
            await end(chain, *plugins)
    assert await ran(client) == ["end of b", "end of a"]
    assert [(line["event"], line["plugin"], line["hook"]) for line in logs] == [("plugin_failed", "b", "end_step")]


async def test_to_give_up_a_frozen_store_is_a_failure_of_the_steps(tmp_path: Path) -> None:
    embedded = EmbeddedStore.start(tmp_path)
    plugins: list[Planner | Waiter] = [*end_hooks_planners([], "b", "c")]
    try:
        async with started(tmp_path / "data", embedded.url, plugins) as (chain, given):
            assert await ran(given.redis) == []
            os.kill(embedded.pid, signal.SIGSTOP)
            entered = [Entry(plugin.name, plugin) for plugin in plugins]
            ending = asyncio.create_task(chain.end(exchange(), entered))
            await wait_until(lambda: plugins[0].calls[-1:] == ["b plans the end"])
            await asyncio.sleep(0.05)
            with capture_logs() as logs:
                ending.cancel()
                await ending
            assert [(line["event"], line["plugin"]) for line in logs] == [("plugin_hangs", "c")]
            assert [len(plugin.failures) for plugin in plugins if isinstance(plugin, Planner)] == [1, 1]
            os.kill(embedded.pid, signal.SIGCONT)
    finally:
        embedded.stop()


@pytest.mark.parametrize("wrong", list(WRONG_STEPS))
async def test_what_cannot_be_sent_affects_no_other(place: Place, client: Client, wrong: str) -> None:
    plugins = end_hooks_planners([], "a", "b", "c")
    plugins[1].makes = WRONG_STEPS[wrong]
    with capture_logs() as logs:
        async with started(*place, plugins) as (chain, _):
            await end(chain, *plugins)
            async with asyncio.timeout(PATIENCE_S):
                await chain.idle()
    assert await ran(client) == ["end of c", "end of a"]
    assert {line["plugin"] for line in logs} == {"b"}
    assert [plugin.failures for plugin in plugins] == [[], [], []]


# Whether another upstream is called after one that failed: each plugin may prevent it, and what goes wrong is logged.
REFUSED = Refused(402, "insufficient_balance", "Top up.")
AWAY = StoreAway("the store did not answer in time")


class Decides(Plugin):
    calls: list[str]
    name: str
    error: BaseException | None = None

    async def on_failover(self, exchange: Exchange) -> None:
        self.calls.append(self.name)
        if self.error is not None:
            raise self.error


async def asked(*plugins: Decides, on_error: Literal["refuse", "ignore"] = "refuse") -> tuple[bool, list[Any]]:
    entries = [Entry(plugin.name, plugin, on_error) for plugin in plugins]
    with structlog.testing.capture_logs() as logs:
        return await may_fail_over(exchange(), entries), [(line["event"], line["plugin"]) for line in logs]


async def test_all_plugins_are_asked_in_order() -> None:
    calls: list[str] = []
    assert await asked(Decides(calls=calls, name="a"), Decides(calls=calls, name="b")) == (True, [])
    assert calls == ["a", "b"]


@pytest.mark.parametrize(
    ("error", "event"),
    [
        (REFUSED, "failover_refused"),
        (AWAY, "failover_refused"),
        (RuntimeError("a bug"), "plugin_failed"),
        (SystemExit(3), "plugin_failed"),
    ],
)
async def test_what_one_raises_prevents_it(error: BaseException, event: str) -> None:
    calls: list[str] = []
    result = await asked(Decides(calls=calls, name="a", error=error), Decides(calls=calls, name="b"))
    assert (result, calls) == ((False, [(event, "a")]), ["a"])


@pytest.mark.parametrize(("error", "may"), [(REFUSED, False), (AWAY, True), (RuntimeError("a bug"), True)])
async def test_errors_may_be_ignored_but_no_refusal(error: BaseException, may: bool) -> None:
    calls: list[str] = []
    plugins = Decides(calls=calls, name="a", error=error), Decides(calls=calls, name="b")
    found, logs = await asked(*plugins, on_error="ignore")
    assert (found, len(logs), calls) == (may, 1, ["a", "b"] if may else ["a"])


async def test_a_cancellation_goes_on() -> None:
    class Waits(Decides):
        async def on_failover(self, exchange: Exchange) -> None:
            await asyncio.Event().wait()

    call: Callable[[], Any] = lambda: may_fail_over(exchange(), [Entry("a", Waits(calls=[], name="a"))])  # noqa: E731
    task = asyncio.create_task(call())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
