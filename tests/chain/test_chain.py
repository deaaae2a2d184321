"""Hooks in the order of the list: called once, described where they fail, wrong ones named when they are loaded."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

import msgspec
import pytest
from aiohttp import web
from pytest_aiohttp import AiohttpServer
from structlog.testing import capture_logs

from gateway import Caller, Exchange, Plugin, Refused, Reply, Route, Services, Step
from gateway.base.errors import GatewayError, Misconfigured, StoreAway
from gateway.chain.chain import Chain, check_order, warnings
from gateway.chain.entry import HOOKS, Entry, describe_error, may_answer, origin_of
from gateway.chain.request_hooks import RequestHooks
from gateway.chain.services import MAX_TASKS
from gateway.chain.services import Services as WorkServices
from gateway.testing import exchange, services
from plugins.examples.masked_answers import MaskedAnswers
from plugins.model_routing import ModelRouting
from plugins.quota import Quota
from plugins.rate_limit import RateLimit
from plugins.redact import Redact
from tests.faulty import Answers, Good
from tests.patience import PATIENCE_S, wait_until
from tests.place import Place

# Hooks run in the order of the list; `on_end` runs in reverse order, once for each entered plugin, whatever happened.
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
async def test_a_plugin_that_hangs_is_named_and_the_others_are_stopped(place: Place, stubborn: bool) -> None:
    running.clear()
    calls: list[str] = []
    steps = [Entry("a", Recorder(calls, "a")), Entry("slow", Hanging(stubborn=stubborn)), Entry("routing", Routes())]
    with capture_logs() as lines:
        await asyncio.wait_for(Chain(steps).stop(limit_s=0.01), PATIENCE_S)
    assert calls == ["a stop"]
    assert [(line["event"], line["plugin"]) for line in lines] == [("plugin_hangs", "slow")]
    async with services(*place) as given:
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
async def test_no_exception_of_a_hook_ends_more_than_the_request(place: Place, error: BaseException) -> None:
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
        async with services(*place) as store:
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


async def test_start_runs_in_order_and_stop_in_reverse_with_each_plugins_name(place: Place) -> None:
    calls: list[str] = []
    chain = chain_of(Recorder(calls, "a"), Recorder(calls, "b", "stop", fail(RuntimeError("a bug"))))
    async with services(*place) as given:
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
    place: Place, error: BaseException, raised: str
) -> None:
    calls: list[str] = []
    good = [Entry("a", Recorder(calls, "a")), Entry("b", Recorder(calls, "b", "stop", fail(RuntimeError("another"))))]
    bad = Entry("c", Recorder(calls, "c", "start", fail(error)), wrong=lambda text: Misconfigured(f"here: {text}"))
    async with services(*place) as given:
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


# What is wrong with the hooks of a class is said with the file and the line.
API = 1


class HooksAnswers(Plugin):
    """Answers."""

    API = 1

    async def on_request(self, exchange: Exchange) -> Reply | None:
        return None


class HooksRoutes(Plugin):
    """Provides the route."""

    provides = (Route,)


def test_the_hooks_are_the_methods_of_the_base_class() -> None:
    assert {"start", "stop", "on_request", "request_step", "on_chunk", "on_end", "end_step"} <= set(HOOKS)


def test_a_plugin_that_answers_above_the_routing_is_warned_of() -> None:
    class Quiet(Plugin):
        API = 1

        async def on_request(self, exchange: Exchange) -> None: ...

    class Annotated(Plugin):
        API = 1

        async def on_request(self, exchange: Exchange) -> Reply | None:
            return None

    assert (may_answer(Answers), may_answer(Annotated), may_answer(Quiet)) == (True, True, False)
    routing = Entry("routing", HooksRoutes())
    assert warnings([Entry("quiet", Quiet()), routing, Entry("cache", Annotated())]) == []
    assert warnings([Entry("cache", Annotated()), routing]) == [
        "`cache` answers requests above `routing`: it answers also for models that the caller may not use; "
        "move it below `routing`"
    ]


def test_a_plugin_that_changes_answers_below_one_that_answers_is_warned_of() -> None:
    routing, cache = Entry("routing", HooksRoutes()), Entry("cache", HooksAnswers())
    masks = Entry("masks", MaskedAnswers())
    assert warnings([masks, routing, cache]) == []
    assert warnings([routing, cache, masks]) == [
        "`masks` does not change what `cache` above it answers: move `masks` above it"
    ]


def test_a_plugin_that_names_no_api_is_accepted_with_a_note() -> None:
    assert warnings([Entry("routing", HooksRoutes()), Entry("good", Good())]) == [
        "`good` does not say which API of plugins it is made for: write `API = 1` in its class"
    ]


# A failure is described with the plugin, its hook, and the line of its file that failed or that called what failed.
HERE = str(Path(__file__))


class Parses(Plugin):
    """Fails in a library."""

    async def on_request(self, exchange: Exchange) -> None:
        self.parse("no JSON")

    def parse(self, text: str) -> None:
        json.loads(text)

    def on_chunk(self, exchange: Exchange, chunk: bytes) -> None:
        raise SystemExit(3)


def failures_line_of(text: str) -> int:
    lines = Path(HERE).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.strip() == text)


async def test_the_line_is_that_of_the_plugin_which_called_a_library() -> None:
    entry = Entry("parser", Parses())
    try:
        await entry.plugin.on_request(exchange())
    except ValueError as error:
        at = f"{HERE}, line {failures_line_of('json.loads(text)')}"
        assert origin_of(error) == {"plugin": "parser", "hook": "on_request", "at": at}
        assert describe_error(error) == f"JSONDecodeError: Expecting value: line 1 column 1 (char 0) ({at})"


def test_what_a_plugin_exited_with_is_the_cause() -> None:
    entry = Entry("parser", Parses())
    try:
        try:
            entry.plugin.on_chunk(exchange(), b"")
        except SystemExit as exited:
            raise RuntimeError("'parser' raised SystemExit") from exited
    except RuntimeError as error:
        assert origin_of(error, "parser")["at"] == f"{HERE}, line {failures_line_of('raise SystemExit(3)')}"


def test_what_comes_from_no_plugin_names_none() -> None:
    try:
        json.loads("no JSON")
    except ValueError as error:
        assert {"plugin", "hook"}.isdisjoint(origin_of(error))
        assert origin_of(error, "known", "end_step")["plugin"] == "known"


# A plugin that changes requests stands above those that count, hold money or route by what they say.
class Identifies(Plugin):
    provides: ClassVar[tuple[type, ...]] = (Caller,)


class OrderRoutes(Plugin):
    provides: ClassVar[tuple[type, ...]] = (Route,)


class CountsAndEdits(Plugin):
    edits = True
    counts = True

    async def on_request(self, exchange: Exchange) -> None: ...


def entries(*plugins: Plugin) -> list[Entry]:
    return [Entry(type(plugin).__name__, plugin) for plugin in plugins]


def test_an_editor_above_what_counts_is_accepted() -> None:
    check_order(entries(Identifies(), Redact(), CountsAndEdits(), RateLimit(), Quota(), ModelRouting()))


@pytest.mark.parametrize("counter", [RateLimit, Quota, OrderRoutes, CountsAndEdits])
def test_an_editor_below_what_counts_is_refused_with_the_cure(counter: type[Plugin]) -> None:
    name = counter.__name__
    with pytest.raises(Misconfigured) as refused:
        check_order(entries(Identifies(), counter(), Redact(), OrderRoutes()))
    assert str(refused.value) == (
        f"'Redact' changes the request below '{name}', which decides by what it says: move 'Redact' above '{name}'"
    )


# Only a plugin that declares it may change the request, in `on_request` and in `explain`.
class Edits(Plugin):
    """Sets the model."""

    edits = True
    model: str = "other"
    """The model."""

    async def on_request(self, exchange: Exchange) -> None:
        await exchange.edit({"model": self.model, "max_tokens": 7}, drop=["user"])

    async def explain(self, exchange: Exchange) -> str:
        await self.on_request(exchange)
        return f"the model is {self.model}"


class EditsInAStep(Plugin):
    edits = True

    async def request_step(self, exchange: Exchange) -> Step | None:
        await exchange.edit({"model": "other"})
        return None


async def editing_run(of: Exchange, *plugins: Plugin) -> None:
    entries = [Entry(f"{type(plugin).__name__}-{index}", plugin) for index, plugin in enumerate(plugins)]
    await RequestHooks(of, entries, [], None).run()  # type: ignore[arg-type]


async def test_a_change_that_changes_nothing_is_not_recorded() -> None:
    of = exchange({"max_tokens": 7})
    await editing_run(of, Edits(model="m"))
    assert (of.changed_by, of.requested_model) == ((), "")


async def test_a_step_may_be_planned_twice_and_so_cannot_edit() -> None:
    with pytest.raises(GatewayError, match="'EditsInAStep-0' changes the request in `request_step`: use `on_request`"):
        await editing_run(exchange(), EditsInAStep())


async def test_nothing_is_edited_after_the_request_hooks() -> None:
    of = exchange()
    await editing_run(of, Edits())
    with pytest.raises(GatewayError, match="outside of `on_request`"):
        await of.edit({"model": "late"})


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"messages": []}, "'messages' is required"),
        ({"Max_Tokens": 9}, "some upstreams take it for 'max_tokens'"),
        ({"max_tokens ": 9}, "some upstreams take it for 'max_tokens'"),
        ({"max\u00a0tokens": 9}, "some upstreams take it for 'max_tokens'"),
        ({"n_predict": 9}, "use 'max_tokens' instead"),
        ({"Stream": False}, "some upstreams take it for 'stream'"),
        ({"temperature": float("inf")}, "`temperature` is no JSON"),
        ({"x": msgspec.Raw(b'1, "stream": false')}, "`x` is no JSON"),
        ({"seed": [[[]]] * 60_000}, "more than 100000 arrays"),
    ],
)
async def test_a_change_that_makes_the_request_invalid_is_the_plugins_fault(
    fields: dict[str, object], why: str
) -> None:
    class Breaks(Plugin):
        edits = True

        async def on_request(self, exchange: Exchange) -> None:
            await exchange.edit(fields)

    of = exchange()
    with pytest.raises(GatewayError, match="'Breaks-0' makes a request that is not valid: ") as error:
        await editing_run(of, Breaks())
    assert why in str(error.value)
    assert (await of.body()).top["messages"]
    assert of.changed_by == ()


async def test_a_test_may_call_the_hook_itself() -> None:
    of = exchange()
    await Edits().on_request(of)
    assert (of.model, of.changed_by) == ("other", ("test",))


# What plugins begin with their services ends with them: after `stop`, and where a start fails.
class Works(Plugin):
    """Works in the background, and fails to start where it is asked to."""

    provides = (Route,)

    fails: bool = False

    async def on_request(self, exchange: object) -> None: ...

    async def start(self, services: Services) -> None:
        self.calls = 0
        self.stopped: list[bool] = []
        self.http = services.http
        services.every(0.001, self._count)
        if self.fails:
            raise ValueError("not now")

    async def stop(self) -> None:
        calls = self.calls
        await asyncio.sleep(0.01)
        self.stopped += [self.calls == calls, not self.http.closed]

    async def _count(self) -> None:
        self.calls += 1


async def test_the_tasks_end_before_stop_and_the_session_after_it(place: Place) -> None:
    plugin = Works()
    before = asyncio.all_tasks()
    async with services(*place) as given:
        chain = Chain([Entry("works", plugin)])
        await chain.start(given)
        await wait_until(lambda: plugin.calls > 1)
        await chain.stop()
    assert plugin.stopped == [True, True]
    assert plugin.http.closed
    assert asyncio.all_tasks() == before


async def test_a_plugin_that_does_not_start_leaves_nothing(place: Place) -> None:
    good, bad = Works(), Works(fails=True)
    before = asyncio.all_tasks()
    async with services(*place) as given:
        chain = Chain([Entry("good", good), Entry("bad", bad)])
        with pytest.raises(Misconfigured, match="'bad' does not start: not now"):
            await chain.start(given)
    assert (good.http.closed, bad.http.closed) == (True, True)
    assert asyncio.all_tasks() == before


# What a plugin does beside its hooks: it is called again, its failures are logged, and it ends with the plugin.
@pytest.fixture
async def work(tmp_path: Path, store_url: str) -> AsyncIterator[WorkServices]:
    async with services(tmp_path, store_url) as given:
        yield given.named("office-hours")


async def test_a_function_is_called_again_after_a_failure_which_is_logged(work: WorkServices) -> None:
    calls: list[str] = []

    async def refresh() -> None:
        task = asyncio.current_task()
        calls.append(task.get_name() if task else "")
        if len(calls) == 1:
            raise SystemExit("a bug")

    with capture_logs() as logged:
        work.every(0.001, refresh)
        await wait_until(lambda: len(calls) >= 3)
    await work.close()
    (line,) = logged
    assert (line["event"], line["plugin"], line["hook"]) == ("plugin_failed", "office-hours", "every")
    assert line["work"].endswith("refresh")
    assert line["at"].startswith(f"{Path(__file__)}, line ")
    assert calls[0].startswith("office-hours: ")


async def test_what_runs_is_cancelled_and_waited_for(work: WorkServices) -> None:
    ended = []

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    before = asyncio.all_tasks()
    work.every(0.001, wait)
    await asyncio.sleep(0.05)
    await work.end_tasks()
    assert (ended, asyncio.all_tasks()) == ([True], before)


async def test_what_cannot_be_repeated_is_refused(work: WorkServices) -> None:
    async def nothing() -> None: ...

    with pytest.raises(ValueError, match="give seconds above 0, not 0"):
        work.every(0, nothing)
    for _ in range(MAX_TASKS):
        work.every(60, nothing)
    with pytest.raises(ValueError, match="16 tasks at most"):
        work.every(60, nothing)
    await work.close()


async def test_the_session_is_one_and_is_closed(work: WorkServices, aiohttp_server: AiohttpServer) -> None:
    async def handler(_: web.Request) -> web.Response:
        return web.Response(text="hi")

    app = web.Application()
    app.router.add_get("/", handler)
    server = await aiohttp_server(app)
    session = work.http
    async with session.get(server.make_url("/")) as response:
        assert await response.text() == "hi"
    assert session is work.http
    assert session.timeout.total == 30
    await work.close()
    assert session.closed


async def test_what_is_no_function_is_refused_in_words(work: WorkServices) -> None:
    async def refresh() -> None:
        pass

    with pytest.raises(
        TypeError, match=r"give the function without calling it, as in `services.every\(60, self.refresh\)`"
    ):
        work.every(60, refresh())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="give an `async` function, not None"):
        work.every(60, None)  # type: ignore[arg-type]
    await work.close()
