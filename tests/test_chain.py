"""Moments run in the order of the list and back; who was entered is told of the end, once, whatever happened."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pytest

from gateway import Caller, Exchange, Plugin, Refused, Reply, Route, Services
from gateway.chain import Chain, Step, warnings
from gateway.errors import Misconfigured
from gateway.testing import exchange, services

Does = Callable[[], object]


class Recorder(Plugin, kw_only=False):
    """Writes down what it is told, and does what the test says at some hook."""

    told: list[str]
    name: str
    at: str = ""
    does: Does = lambda: None

    def note(self, hook: str) -> object:
        self.told.append(f"{self.name} {hook}")
        return self.does() if hook == self.at else None

    async def start(self, services: Services) -> None:
        self.note(f"start as {services.name}")
        self.note("start")

    async def stop(self) -> None:
        self.note("stop")

    async def on_request(self, exchange: Exchange) -> Reply | None:
        reply = self.note("request")
        if isinstance(reply, asyncio.Future):
            await reply
        return reply if isinstance(reply, Reply) else None

    def on_response(self, exchange: Exchange) -> None:
        self.note("response")

    def on_chunk(self, exchange: Exchange, chunk: bytes) -> None:
        self.note("chunk")

    async def on_end(self, exchange: Exchange) -> None:
        future = self.note("end")
        if isinstance(future, asyncio.Future):
            await future


class Routes(Plugin):
    """Makes a chain whole; defines no hook."""

    provides: ClassVar[tuple[type, ...]] = (Route,)


class Provides(Plugin):
    provides: ClassVar[tuple[type, ...]] = (Caller,)


class Needs(Plugin):
    requires: ClassVar[tuple[type, ...]] = (Caller,)


class Watcher(Recorder):
    sees_misdirected: ClassVar[bool] = True


def fail(error: BaseException) -> Does:
    def does() -> None:
        raise error

    return does


def cancelled() -> object:
    future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    future.cancel()
    return future


def chain_of(*plugins: Recorder, ignore: str = "") -> Chain:
    steps = [Step(plugin.name, plugin, "ignore" if plugin.name == ignore else "refuse") for plugin in plugins]
    return Chain([*steps, Step("routing", Routes())])


async def there_and_back(chain: Chain, asked: Exchange | None = None) -> Exception | Reply | None:
    asked = asked or exchange()
    entered: list[Step] = []
    try:
        return await chain.request(asked, entered)
    except Exception as error:
        return error
    finally:
        await chain.end(asked, entered)


async def test_moments_run_down_the_list_and_up_again() -> None:
    told: list[str] = []
    chain = chain_of(*(Recorder(told, name) for name in "abc"))
    assert await there_and_back(chain) is None
    assert told == ["a request", "b request", "c request", "c end", "b end", "a end"]


REFUSAL = Refused(403, "closed", "Come back later.")


@pytest.mark.parametrize("how", [fail(REFUSAL), fail(RuntimeError("a bug")), lambda: Reply(200, b"{}"), lambda: None])
async def test_whoever_was_entered_is_told_of_the_end_once(how: Does) -> None:
    told: list[str] = []
    chain = chain_of(Recorder(told, "a"), Recorder(told, "b", "request", how), Recorder(told, "c"))
    await there_and_back(chain)
    entered = [line.split()[0] for line in told if line.endswith("request")]
    assert [line.split()[0] for line in told if line.endswith("end")] == entered[::-1]
    assert entered[:2] == ["a", "b"]


async def test_a_refusal_stops_the_way_in_and_names_the_plugin() -> None:
    told: list[str] = []
    asked = exchange()
    chain = chain_of(Recorder(told, "a"), Recorder(told, "b", "request", fail(REFUSAL)), Recorder(told, "c"))
    assert await there_and_back(chain, asked) is REFUSAL
    assert asked.refused_by == "b"
    assert told == ["a request", "b request", "b end", "a end"]


@pytest.mark.parametrize(("status", "refused_by"), [(200, ""), (404, "a")])
async def test_a_reply_stops_the_way_in_and_is_a_refusal_from_400(status: int, refused_by: str) -> None:
    told: list[str] = []
    asked = exchange()
    reply = Reply(status)
    assert (
        await there_and_back(chain_of(Recorder(told, "a", "request", lambda: reply), Recorder(told, "b")), asked)
        is reply
    )
    assert asked.refused_by == refused_by
    assert told == ["a request", "a end"]


async def test_a_plugin_whose_errors_are_ignored_is_passed_over_and_still_told() -> None:
    told: list[str] = []
    failing = Recorder(told, "a", "request", fail(RuntimeError("a bug")))
    assert await there_and_back(chain_of(failing, Recorder(told, "b"), ignore="a")) is None
    assert told == ["a request", "b request", "b end", "a end"]


async def test_a_refusal_is_no_error_to_be_ignored() -> None:
    told: list[str] = []
    refusing = Recorder(told, "a", "request", fail(REFUSAL))
    assert await there_and_back(chain_of(refusing, ignore="a")) is REFUSAL


@pytest.mark.parametrize("how", [fail(RuntimeError("a bug")), fail(REFUSAL), cancelled])
async def test_an_end_that_fails_keeps_nobody_from_being_told(how: Does, capsys: pytest.CaptureFixture[str]) -> None:
    told: list[str] = []
    await there_and_back(chain_of(Recorder(told, "a"), Recorder(told, "b", "end", how), Recorder(told, "c")))
    assert told[3:] == ["c end", "b end", "a end"]
    assert "on_end" in capsys.readouterr().out


async def test_an_end_that_is_itself_cancelled_stays_cancelled() -> None:
    told: list[str] = []
    chain = chain_of(Recorder(told, "a", "end", asyncio.get_running_loop().create_future))
    entered: list[Step] = []
    await chain.request(exchange(), entered)
    task = asyncio.create_task(chain.end(exchange(), entered))
    while "a end" not in told:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_what_is_misdirected_reaches_only_those_who_want_to_see_it() -> None:
    told: list[str] = []
    chain = chain_of(Watcher(told, "a"), Recorder(told, "b"))
    await there_and_back(chain, exchange(path="/v1/nowhere"))
    assert told == ["a request", "a end"]


def test_a_moment_that_nobody_defines_costs_nothing() -> None:
    told: list[str] = []
    silent = Chain([Step("routing", Routes()), Step("needs nothing", Provides())])
    assert (silent.on_response, silent.on_chunk) == ((), ())
    chain = chain_of(Recorder(told, "a"), Recorder(told, "b"))
    assert (len(chain.on_response), len(chain.on_chunk)) == (2, 2)
    assert chain.on_chunk[0].__self__ is chain.steps[0].plugin  # type: ignore[attr-defined] # nothing in between


def test_looking_moments_run_in_order_and_fail_only_where_the_plugin_matters() -> None:
    told: list[str] = []
    bug = RuntimeError("a bug")
    chain = chain_of(Recorder(told, "a", "chunk", fail(bug)), Recorder(told, "b", "chunk", fail(bug)), ignore="a")
    first, second = chain.on_chunk
    first(exchange(), b"data: x\n\n")
    with pytest.raises(RuntimeError):
        second(exchange(), b"data: x\n\n")
    for hook in chain.on_response:
        hook(exchange())
    assert told == ["a chunk", "b chunk", "a response", "b response"]


async def test_start_and_stop_run_there_and_back_with_each_plugins_own_name(tmp_path: Path, store_url: str) -> None:
    told: list[str] = []
    chain = chain_of(Recorder(told, "a"), Recorder(told, "b", "stop", fail(RuntimeError("a bug"))))
    async with services(tmp_path, store_url) as given:
        await chain.start(given)
        await chain.stop()
    assert told == ["a start as a", "a start", "b start as b", "b start", "b stop", "a stop"]


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (ValueError("opens must be before closes"), "here: 'c' does not start: opens must be before closes"),
        (RuntimeError("a bug"), "a bug"),
    ],
)
async def test_a_start_that_fails_stops_those_that_had_started(
    tmp_path: Path, store_url: str, error: Exception, raised: str
) -> None:
    told: list[str] = []
    good = [Step("a", Recorder(told, "a")), Step("b", Recorder(told, "b", "stop", fail(RuntimeError("another"))))]
    bad = Step("c", Recorder(told, "c", "start", fail(error)), wrong=lambda text: Misconfigured(f"here: {text}"))
    async with services(tmp_path, store_url) as given:
        with pytest.raises((Misconfigured, RuntimeError)) as refused:
            await Chain([*good, bad, Step("routing", Routes())]).start(given)
    assert str(refused.value) == raised
    assert told[-2:] == ["b stop", "a stop"]


def refusal(*steps: Step) -> str:
    with pytest.raises(Misconfigured) as refused:
        Chain(steps)
    return str(refused.value)


def test_the_order_is_checked_and_the_cure_named() -> None:
    needs, provides, routes = Step("needs", Needs()), Step("gives", Provides()), Step("routes", Routes())
    assert Chain([provides, needs, routes]).steps == (provides, needs, routes)
    assert refusal(needs, routes, provides) == (
        "'needs' needs Caller, which nothing above it provides: move 'gives' above 'needs'"
    )
    assert refusal(needs, routes) == (
        "'needs' needs Caller, which nothing above it provides: add a plugin that provides it above 'needs'"
    )
    for steps in ((provides, needs), ()):
        assert refusal(*steps) == ("nothing in the chain provides Route: add `- use: model-routing` as the last plugin")


def test_a_fact_that_is_needed_cannot_come_from_a_plugin_whose_errors_are_ignored() -> None:
    needs, routes = Step("needs", Needs()), Step("routes", Routes())
    ignored = Step("gives", Provides(), "ignore")
    cure = "'gives' provides Caller, which is needed: remove its `on_error: ignore`"
    assert refusal(ignored, needs, routes) == cure
    assert Chain([ignored, routes]).steps[0] is ignored, "nobody needs it"
    cure = "'routes' provides Route, which is needed: remove its `on_error: ignore`"
    assert refusal(Step("routes", Routes(), "ignore")) == cure


def test_a_log_below_a_plugin_that_may_refuse_is_warned_of() -> None:
    told: list[str] = []
    log, other = Step("log", Watcher(told, "log")), Step("other", Recorder(told, "other"))
    assert warnings([log, other]) == []
    assert warnings([other, log]) == [
        "`log` is below `other`: requests refused there leave no record; move it to the top"
    ]


def test_a_chain_is_worth_reading() -> None:
    assert repr(Chain([Step("auth", Provides()), Step("routes", Routes())], generation=3)) == "<Chain 3: auth > routes>"
