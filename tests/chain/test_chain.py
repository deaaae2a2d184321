"""Hooks run in the order of the list; `on_end` runs in reverse order, once for each entered plugin, whatever happened."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

import pytest
from structlog.testing import capture_logs

from gateway import Caller, Exchange, Plugin, Refused, Reply, Route, Services
from gateway.base.errors import GatewayError, Misconfigured, StoreAway
from gateway.chain.chain import Chain, warnings
from gateway.chain.entry import Entry
from gateway.testing import exchange, services
from tests.patience import PATIENCE_S

Does = Callable[[], object]


class Recorder(Plugin, kw_only=False):
    """A plugin that appends each call to `calls`, and does `does` in the hook `at`."""

    API = 1
    calls: list[str]
    name: str
    at: str = ""
    does: Does = lambda: None

    def note(self, hook: str) -> object:
        self.calls.append(f"{self.name} {hook}")
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
    """A plugin that completes a chain and defines no hook."""

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
    steps = [Entry(plugin.name, plugin, "ignore" if plugin.name == ignore else "refuse") for plugin in plugins]
    return Chain([*steps, Entry("routing", Routes())])


async def test_a_plugin_that_calls_sys_exit_ends_neither_the_process_nor_another_plugin() -> None:
    calls: list[str] = []
    exits = Recorder(calls, "b", at="request", does=fail(SystemExit(3)))
    error = await run(chain_of(Recorder(calls, "a"), exits))
    assert isinstance(error, RuntimeError)
    assert str(error) == "'b' raised SystemExit"
    assert calls == ["a request", "b request", "b end", "a end"]
    calls.clear()
    await run(chain_of(Recorder(calls, "a"), Recorder(calls, "b", at="end", does=fail(SystemExit(3)))))
    assert calls == ["a request", "b request", "b end", "a end"]


async def run(chain: Chain, request: Exchange | None = None) -> Exception | Reply | None:
    request = request or exchange()
    entered: list[Entry] = []
    try:
        return await chain.request(request, entered)
    except Exception as error:
        return error
    finally:
        await chain.end(request, entered)


async def test_on_request_runs_in_the_order_of_the_list_and_on_end_in_reverse() -> None:
    calls: list[str] = []
    chain = chain_of(*(Recorder(calls, name) for name in "abc"))
    assert await run(chain) is None
    assert calls == ["a request", "b request", "c request", "c end", "b end", "a end"]


REFUSAL = Refused(403, "closed", "Come back later.")


@pytest.mark.parametrize("how", [fail(REFUSAL), fail(RuntimeError("a bug")), lambda: Reply(200, b"{}"), lambda: None])
async def test_on_end_runs_once_for_each_entered_plugin(how: Does) -> None:
    calls: list[str] = []
    chain = chain_of(Recorder(calls, "a"), Recorder(calls, "b", "request", how), Recorder(calls, "c"))
    await run(chain)
    entered = [line.split()[0] for line in calls if line.endswith("request")]
    assert [line.split()[0] for line in calls if line.endswith("end")] == entered[::-1]
    assert entered[:2] == ["a", "b"]


async def test_a_refusal_stops_the_chain_and_names_the_plugin() -> None:
    calls: list[str] = []
    request = exchange()
    chain = chain_of(Recorder(calls, "a"), Recorder(calls, "b", "request", fail(REFUSAL)), Recorder(calls, "c"))
    assert await run(chain, request) is REFUSAL
    assert request.refused_by == "b"
    assert calls == ["a request", "b request", "b end", "a end"]


@pytest.mark.parametrize(("status", "refused_by"), [(200, ""), (404, "a")])
async def test_a_reply_stops_the_chain_and_is_a_refusal_from_status_400(status: int, refused_by: str) -> None:
    calls: list[str] = []
    request = exchange()
    reply = Reply(status)
    assert await run(chain_of(Recorder(calls, "a", "request", lambda: reply), Recorder(calls, "b")), request) is reply
    assert request.refused_by == refused_by
    assert calls == ["a request", "a end"]


async def test_a_plugin_whose_errors_are_ignored_is_skipped_and_still_ended() -> None:
    calls: list[str] = []
    failing = Recorder(calls, "a", "request", fail(RuntimeError("a bug")))
    assert await run(chain_of(failing, Recorder(calls, "b"), ignore="a")) is None
    assert calls == ["a request", "b request", "b end", "a end"]


async def test_a_refusal_is_not_ignored_as_an_error() -> None:
    calls: list[str] = []
    refusing = Recorder(calls, "a", "request", fail(REFUSAL))
    assert await run(chain_of(refusing, ignore="a")) is REFUSAL


@pytest.mark.parametrize("how", [fail(RuntimeError("a bug")), fail(REFUSAL), cancelled])
async def test_a_failing_on_end_does_not_stop_the_others(how: Does, capsys: pytest.CaptureFixture[str]) -> None:
    calls: list[str] = []
    await run(chain_of(Recorder(calls, "a"), Recorder(calls, "b", "end", how), Recorder(calls, "c")))
    assert calls[3:] == ["c end", "b end", "a end"]
    assert "on_end" in capsys.readouterr().out


async def test_a_cancelled_end_gives_up_one_hook_and_runs_those_of_the_others() -> None:
    calls: list[str] = []
    chain = chain_of(
        Recorder(calls, "a"),
        Recorder(calls, "b", "end", asyncio.get_running_loop().create_future),
        Recorder(calls, "c"),
    )
    entered: list[Entry] = []
    await chain.request(exchange(), entered)
    task = asyncio.create_task(chain.end(exchange(), entered))
    while "b end" not in calls:
        await asyncio.sleep(0)
    with capture_logs() as lines:
        task.cancel()
        await task
    assert calls[-3:] == ["c end", "b end", "a end"]
    assert [(line["event"], line["plugin"]) for line in lines] == [("plugin_hangs", "b")]


class Hanging(Plugin):
    """A plugin that never stops and never starts, and that ignores cancellations if it is `stubborn`."""

    stubborn: bool = False

    async def start(self, services: Services) -> None:
        await self.hang()

    async def stop(self) -> None:
        await self.hang()

    async def hang(self) -> None:
        forever = asyncio.get_running_loop().create_future()
        running.append(forever)
        while not forever.done():
            try:
                await asyncio.shield(forever)
            except asyncio.CancelledError:
                if not self.stubborn:
                    raise


running: list[asyncio.Future[None]] = []


@pytest.mark.parametrize("stubborn", [False, True])
async def test_a_plugin_that_hangs_is_named_and_the_others_are_stopped(
    tmp_path: Path, store_url: str, stubborn: bool
) -> None:
    running.clear()
    calls: list[str] = []
    steps = [Entry("a", Recorder(calls, "a")), Entry("slow", Hanging(stubborn=stubborn)), Entry("routing", Routes())]
    with capture_logs() as lines:
        await asyncio.wait_for(Chain(steps).stop(limit_s=0.01), PATIENCE_S)
    assert calls == ["a stop"]
    assert [(line["event"], line["plugin"]) for line in lines] == [("plugin_hangs", "slow")]
    async with services(tmp_path, store_url) as given:
        with pytest.raises(GatewayError, match=r"'slow' did not start within 0\.01 s$"):
            await asyncio.wait_for(Chain(steps).start(given, limit_s=0.01), PATIENCE_S)
    assert calls == ["a stop", "a start as a", "a start", "a stop"]
    for forever in running:
        forever.set_result(None)


class Own(BaseException):
    """An exception that is no `Exception` and fails at giving its text."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


SEVERE = (
    KeyboardInterrupt(),
    SystemExit(1),
    Own(),
    RecursionError(),
    MemoryError(),
    GeneratorExit(),
    asyncio.CancelledError(),
)


@pytest.mark.parametrize("error", SEVERE, ids=repr)
async def test_no_exception_of_a_hook_ends_more_than_the_request(
    tmp_path: Path, store_url: str, error: BaseException
) -> None:
    calls: list[str] = []
    for hook in ("request", "end"):
        chain = chain_of(Recorder(calls, "a"), Recorder(calls, "b", hook, fail(error)))
        entered: list[Entry] = []
        given = exchange()
        with suppress(Exception):
            await chain.request(given, entered)
        await chain.end(given, entered)
        assert calls[-2:] == ["b end", "a end"]
    for hook in ("start", "stop"):
        chain = chain_of(Recorder(calls, "a"), Recorder(calls, "b", hook, fail(error)))
        async with services(tmp_path, store_url) as store:
            with suppress(GatewayError):
                await chain.start(store)
            await chain.stop()
        assert calls[-1:] == ["a stop"]


async def test_misdirected_requests_reach_only_plugins_with_sees_misdirected() -> None:
    calls: list[str] = []
    chain = chain_of(Watcher(calls, "a"), Recorder(calls, "b"))
    await run(chain, exchange(path="/v1/nowhere"))
    assert calls == ["a request", "a end"]


def test_a_hook_that_no_plugin_defines_costs_nothing() -> None:
    calls: list[str] = []
    silent = Chain([Entry("routing", Routes()), Entry("needs nothing", Provides())])
    assert (silent.on_response, silent.on_chunk) == ((), ())
    chain = chain_of(Recorder(calls, "a"), Recorder(calls, "b"))
    assert (len(chain.on_response), len(chain.on_chunk)) == (2, 2)
    assert chain.on_chunk[0][1].__self__ is chain.entries[0].plugin  # type: ignore[attr-defined] # nothing in between


def test_observing_hooks_run_in_order_and_fail_unless_errors_are_ignored() -> None:
    calls: list[str] = []
    bug = RuntimeError("a bug")
    chain = chain_of(Recorder(calls, "a", "chunk", fail(bug)), Recorder(calls, "b", "chunk", fail(bug)), ignore="a")
    (_, first), (_, second) = chain.on_chunk
    first(exchange(), b"data: x\n\n")
    with pytest.raises(RuntimeError):
        second(exchange(), b"data: x\n\n")
    for _, hook in chain.on_response:
        hook(exchange())
    assert calls == ["a chunk", "b chunk", "a response", "b response"]


async def test_start_runs_in_order_and_stop_in_reverse_with_each_plugins_name(tmp_path: Path, store_url: str) -> None:
    calls: list[str] = []
    chain = chain_of(Recorder(calls, "a"), Recorder(calls, "b", "stop", fail(RuntimeError("a bug"))))
    async with services(tmp_path, store_url) as given:
        await chain.start(given)
        await chain.stop()
    assert calls == ["a start as a", "a start", "b start as b", "b start", "b stop", "a stop"]


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (ValueError("opens must be before closes"), "here: 'c' does not start: opens must be before closes"),
        (RuntimeError("a bug"), "here: 'c' does not start: RuntimeError: a bug (FILE, line N)"),
        (SystemExit(3), "here: 'c' does not start: SystemExit: 3 (FILE, line N)"),
        (StoreAway("the store did not answer in time"), "the store did not answer in time"),
    ],
)
async def test_a_failing_start_stops_the_plugins_already_started(
    tmp_path: Path, store_url: str, error: BaseException, raised: str
) -> None:
    calls: list[str] = []
    good = [Entry("a", Recorder(calls, "a")), Entry("b", Recorder(calls, "b", "stop", fail(RuntimeError("another"))))]
    bad = Entry("c", Recorder(calls, "c", "start", fail(error)), wrong=lambda text: Misconfigured(f"here: {text}"))
    async with services(tmp_path, store_url) as given:
        with pytest.raises(GatewayError) as refused:
            await Chain([*good, bad, Entry("routing", Routes())]).start(given)
    text = re.sub(r"\(.*test_chain\.py, line \d+\)", "(FILE, line N)", str(refused.value))
    assert text == raised
    assert isinstance(refused.value, Misconfigured) is isinstance(error, ValueError), "only a wrong setting ends with 2"
    assert calls[-2:] == ["b stop", "a stop"]


def refusal(*steps: Entry) -> str:
    with pytest.raises(Misconfigured) as refused:
        Chain(steps)
    return str(refused.value)


def test_the_order_is_checked_and_the_remedy_named() -> None:
    needs, provides, routes = Entry("needs", Needs()), Entry("gives", Provides()), Entry("routes", Routes())
    assert Chain([provides, needs, routes]).entries == (provides, needs, routes)
    assert refusal(needs, routes, provides) == (
        "'needs' needs Caller, which nothing above it provides: move 'gives' above 'needs'"
    )
    assert refusal(needs, routes) == (
        "'needs' needs Caller, which nothing above it provides: add a plugin that provides it above 'needs'"
    )
    for steps in ((provides, needs), ()):
        assert refusal(*steps) == ("nothing in the chain provides Route: add `- use: model-routing` as the last plugin")


def test_a_required_fact_cannot_come_from_a_plugin_whose_errors_are_ignored() -> None:
    needs, routes = Entry("needs", Needs()), Entry("routes", Routes())
    ignored = Entry("gives", Provides(), "ignore")
    remedy = "'gives' provides Caller, which is needed: remove its `on_error: ignore`"
    assert refusal(ignored, needs, routes) == remedy
    assert Chain([ignored, routes]).entries[0] is ignored, "refused although no plugin requires the fact"
    remedy = "'routes' provides Route, which is needed: remove its `on_error: ignore`"
    assert refusal(Entry("routes", Routes(), "ignore")) == remedy


def test_a_log_below_a_plugin_that_may_refuse_gives_a_warning() -> None:
    calls: list[str] = []
    log, other = Entry("log", Watcher(calls, "log")), Entry("other", Recorder(calls, "other"))
    assert warnings([log, other]) == []
    assert warnings([other, log]) == [
        "`log` is below `other`: requests refused there leave no record; move it to the top"
    ]


def test_the_repr_of_a_chain_lists_its_plugins() -> None:
    assert (
        repr(Chain([Entry("auth", Provides()), Entry("routes", Routes())], generation=3)) == "<Chain 3: auth > routes>"
    )
