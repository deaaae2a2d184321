"""Steps of requests are sent together, decide in the order of the list, and are planned again where their plan was wrong."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway import Exchange, Refused, Step
from gateway.base.errors import StoreAway, StoreError
from gateway.chain.chain import Chain
from gateway.chain.entry import Entry, wrong_hooks
from gateway.store.client.client import Client
from gateway.testing import exchange
from tests.chain.planners import APPEND, FAIL, KEY, STOP, WRONG_STEPS, Planner, Waiter, ran, started

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


async def test_steps_are_sent_as_one_script(tmp_path: Path, store_url: str, client: Client) -> None:
    calls: list[str] = []
    async with started(tmp_path, store_url, planners(calls, "a", "b", "c")) as (chain, _):
        before = (await client.call("INFO", "commandstats")).get("cmdstat_eval", {}).get("calls", 0)
        assert await request(chain, exchange()) == (["a", "b", "c"], None)
        assert calls == ["a plans", "b plans", "c plans", "a reads", "b reads", "c reads"]
        assert await ran(client) == ["a", "b", "c"]
        stats = await client.call("INFO", "commandstats")
        scripts = stats["cmdstat_evalsha"]["calls"] + stats.get("cmdstat_eval", {}).get("calls", 0) - before
        await request(chain, exchange())
        stats = await client.call("INFO", "commandstats")
        assert stats["cmdstat_evalsha"]["calls"] + stats["cmdstat_eval"]["calls"] - before == scripts + 1


async def test_steps_are_sent_before_a_plugin_that_waits(tmp_path: Path, store_url: str, client: Client) -> None:
    calls: list[str] = []
    a, b, c = planners(calls, "a", "b", "c")
    async with started(tmp_path, store_url, [a, b, Waiter(name="w", calls=calls), c]) as (chain, _):
        assert await request(chain, exchange()) == (["a", "b", "w", "c"], None)
    assert calls == ["a plans", "b plans", "a reads", "b reads", "w finds ['a', 'b']", "c plans", "c reads"]


async def test_what_is_below_a_refusal_is_neither_run_nor_entered(
    tmp_path: Path, store_url: str, client: Client
) -> None:
    calls: list[str] = []
    a, b, c = planners(calls, "a", "b", "c")
    b.script, b.reads = STOP, refuse
    of = exchange()
    async with started(tmp_path, store_url, [a, b, c, Waiter(name="w", calls=calls)]) as (chain, _):
        assert await request(chain, of) == (["a", "b", "c"], CLOSED)
    assert (of.refused_by, await ran(client)) == ("b", ["a", "b"])
    assert [plugin.step.may_have_run for plugin in (a, b, c)] == [True, True, False]


@pytest.mark.parametrize("first_refuses", [True, False])
async def test_a_decision_of_a_plugin_counts_after_the_steps_above_it(
    tmp_path: Path, store_url: str, client: Client, first_refuses: bool
) -> None:
    a, b = planners([], "a", "b")
    a.reads = refuse if first_refuses else a.reads

    async def wrong(_: Exchange) -> None:
        raise WRONG

    b.does = wrong
    of = exchange()
    async with started(tmp_path, store_url, [a, b]) as (chain, _):
        assert await request(chain, of) == (["a", "b"], CLOSED if first_refuses else WRONG)
    assert (of.refused_by, await ran(client)) == ("a" if first_refuses else "b", ["a"])


async def test_plugins_below_a_wrong_plan_plan_again_once(tmp_path: Path, store_url: str, client: Client) -> None:
    calls: list[str] = []
    a, b, c, d = planners(calls, "a", "b", "c", "d")
    b.script, b.reads = STOP, again
    async with started(tmp_path, store_url, [a, b, c, d]) as (chain, _):
        assert await request(chain, exchange()) == (["a", "b", "c", "d"], None)
    assert calls[4:] == ["a reads", "b reads", "c plans", "d plans", "c reads", "d reads"]
    assert await ran(client) == ["a", "b", "c", "d"]


async def test_a_refusal_that_rests_on_a_wrong_plan_is_decided_again(
    tmp_path: Path, store_url: str, client: Client
) -> None:
    a, b = planners([], "a", "b")
    known = ["wrong"]

    async def learn(_: Exchange, reply: Any) -> bool:
        known[0] = "right"
        return True

    async def decide(_: Exchange) -> None:
        if known[0] == "wrong":
            raise WRONG

    a.script, a.reads, b.does = STOP, learn, decide
    async with started(tmp_path, store_url, [a, b]) as (chain, _):
        assert await request(chain, exchange()) == (["a", "b"], None)
    assert await ran(client) == ["a", "b"]


async def test_to_stop_the_steps_below_without_a_refusal_is_an_error(
    tmp_path: Path, store_url: str, client: Client
) -> None:
    a, b, c = planners([], "a", "b", "c")
    a.script = STOP
    of = exchange()
    async with started(tmp_path, store_url, [a, b, c]) as (chain, _):
        _, error = await request(chain, of)
    assert (type(error), of.refused_by) == (RuntimeError, "a")
    assert await ran(client) == ["a"]


async def test_steps_below_one_that_stops_run_where_its_error_is_ignored(
    tmp_path: Path, store_url: str, client: Client
) -> None:
    a, b, c = planners([], "a", "b", "c")
    a.script = STOP
    async with started(tmp_path, store_url, [a, b, c], ignore=["a"]) as (chain, _):
        assert await request(chain, exchange()) == (["a", "b", "c"], None)
    assert await ran(client) == ["a", "b", "c"]


@pytest.mark.parametrize("wrong", list(WRONG_STEPS))
async def test_what_cannot_be_sent_is_the_error_of_its_plugin(
    tmp_path: Path, store_url: str, client: Client, wrong: str
) -> None:
    a, b, c = planners([], "a", "b", "c")
    b.makes = WRONG_STEPS[wrong]
    of = exchange()
    async with started(tmp_path, store_url, [a, b, c]) as (chain, _):
        _, error = await request(chain, of)
    assert isinstance(error, Exception)
    assert of.refused_by == "b"
    assert await ran(client) == ["a"]


@pytest.mark.parametrize("wrong", list(WRONG_STEPS))
async def test_what_cannot_be_sent_is_passed_over_where_that_is_ignored(
    tmp_path: Path, store_url: str, client: Client, wrong: str
) -> None:
    a, b, c = planners([], "a", "b", "c")
    b.makes = WRONG_STEPS[wrong]
    with capture_logs() as logs:
        async with started(tmp_path, store_url, [a, b, c], ignore=["b"]) as (chain, _):
            assert await request(chain, exchange()) == (["a", "b", "c"], None)
    assert await ran(client) == ["a", "c"]
    assert [(line["event"], line["plugin"]) for line in logs] == [("plugin_failed", "b")]


async def test_a_step_that_was_returned_before_is_an_error(tmp_path: Path, store_url: str, client: Client) -> None:
    a, b = planners([], "a", "b")
    step = Step(APPEND, [KEY], ["b"])
    b.makes = lambda: step
    async with started(tmp_path, store_url, [a, b]) as (chain, _):
        assert await request(chain, exchange()) == (["a", "b"], None)
        of = exchange()
        _, error = await request(chain, of)
    assert (type(error), of.refused_by) == (TypeError, "b")


async def test_to_plan_again_what_has_run_is_an_error(tmp_path: Path, store_url: str, client: Client) -> None:
    a, b = planners([], "a", "b")
    a.reads = again
    of = exchange()
    async with started(tmp_path, store_url, [a, b]) as (chain, _):
        _, error = await request(chain, of)
    assert (type(error), of.refused_by) == (RuntimeError, "a")


class TestBeforeABodyIsRead:
    """The gateway awaits `hooks.before_body` for a body that is large or has not arrived."""

    @pytest.mark.parametrize("catches", [True, False])
    async def test_a_refusal_spares_the_body(
        self, tmp_path: Path, store_url: str, client: Client, catches: bool
    ) -> None:
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
        async with started(tmp_path, store_url, [a, b]) as (chain, _):
            assert await request(chain, of) == (["a", "b"], CLOSED)
        assert (of.refused_by, read) == ("a", ["body"] if catches else [])

    @pytest.mark.parametrize("catches", [True, False])
    async def test_a_wrong_plan_is_mended_first(
        self, tmp_path: Path, store_url: str, client: Client, catches: bool
    ) -> None:
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
        async with started(tmp_path, store_url, [a, b, c]) as (chain, _):
            assert await request(chain, exchange()) == (["a", "b", "c"], None)
        caught = ["c reads the body"] if catches else []
        assert calls == [
            *("a plans", "b plans", "c plans", "a reads", *caught, "b plans", "c plans", "b reads"),
            *("c reads the body", "c reads"),
        ]
        assert await ran(client) == ["a", "b", "c"]

    async def test_nothing_is_kept_of_it_afterwards(self, tmp_path: Path, store_url: str, client: Client) -> None:
        of = exchange()
        async with started(tmp_path, store_url, planners([], "a")) as (chain, _):
            await request(chain, of)
        assert of.hooks is None


class TestErrors:
    async def test_a_step_that_fails_refuses_the_request(self, tmp_path: Path, store_url: str, client: Client) -> None:
        a, b, c = planners([], "a", "b", "c")
        b.script = FAIL
        of = exchange()
        async with started(tmp_path, store_url, [a, b, c]) as (chain, _):
            _, error = await request(chain, of)
        assert (type(error), of.refused_by, await ran(client)) == (StoreError, "b", ["a"])

    async def test_a_step_that_fails_and_is_ignored_is_passed_over(
        self, tmp_path: Path, store_url: str, client: Client
    ) -> None:
        a, b, c = planners([], "a", "b", "c")
        b.script = FAIL
        with capture_logs() as logs:
            async with started(tmp_path, store_url, [a, b, c], ignore="b") as (chain, _):
                assert await request(chain, exchange()) == (["a", "b", "c"], None)
        assert await ran(client) == ["a", "c"]
        assert [(line["event"], line["plugin"]) for line in logs] == [("plugin_failed", "b")]

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

    async def test_what_reading_a_reply_raises_is_contained(
        self, tmp_path: Path, store_url: str, client: Client
    ) -> None:
        async def crash(_: Exchange, reply: Any) -> bool | None:
            raise SystemExit(3)

        a, b = planners([], "a", "b")
        a.reads = crash
        of = exchange()
        async with started(tmp_path, store_url, [a, b]) as (chain, _):
            _, error = await request(chain, of)
        assert (type(error), str(error), of.refused_by) == (RuntimeError, "'a' raised SystemExit", "a")


class Both(Planner):
    """Defines both forms of a hook."""

    async def on_end(self, exchange: Exchange) -> None: ...


def test_a_plugin_has_one_form_of_each_hook() -> None:
    (found,) = wrong_hooks(Both)
    assert found.startswith("`on_end` and `end_step` are both defined: keep one of them (")
