"""A plugin that ends a stream decides up to which event it is delivered; what is withheld is not counted."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway import Exchange, Outcome, Refused, Reply
from gateway.chat.events import EventStream, WatchedEvents
from gateway.chat.prompt import PromptBound
from gateway.chat.request import Body
from gateway.chat.sse import whole_events
from gateway.proxy.caller import CallerConnection
from gateway.proxy.chunk_hooks import AnswerHooks, ChunkHooks, EndReason
from gateway.proxy.plugin_streams import answer_with_events
from gateway.testing import exchange
from tests.fuzz.twins import REQUEST, Owner, Transport
from tests.patience import PATIENCE_S

ERROR = Refused(400, "stopped", "Stopped.")
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":11,"completion_tokens":99,"total_tokens":110}}\n\n'
END = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n' + USAGE + b"data: [DONE]\n\n"

Hook = Callable[[Exchange, bytes], None]


def event(text: str) -> bytes:
    return b"data: %b\n\n" % json.dumps({"choices": [{"index": 0, "delta": {"content": text}}]}).encode()


def stops_at(word: bytes) -> Hook:
    def hook(of: Exchange, chunk: bytes) -> None:
        if (at := chunk.find(word)) >= 0:
            of.stop(ERROR, keep=at)

    return hook


def counted(stream: EventStream) -> tuple[int, int, int]:
    """Return the events, the output and the tokens that are charged of a stream that reported no final usage."""
    usage = stream.usage.usage(lambda: 7, stream.output.tokens)
    return stream.events, stream.output.tokens(), usage.completion_tokens


def relayed(reads: list[bytes], *hooks: Hook) -> tuple[bytes, WatchedEvents, ChunkHooks, Exchange]:
    of, stream = exchange(), WatchedEvents(drop_usage=False)
    chunk_hooks = ChunkHooks(of, [(f"plugin-{index}", hook) for index, hook in enumerate(hooks)])
    delivered = b""
    for read in reads:
        whole = stream.feed(read)
        while True:
            if whole:
                delivered += chunk_hooks.deliverable(whole, stream)
            if chunk_hooks.withheld or not stream.backlog:
                break
            whole = stream.feed(b"")
        if chunk_hooks.withheld:
            break
    return delivered, stream, chunk_hooks, of


@settings(max_examples=50, deadline=None)
@given(st.lists(st.text("abcdefgh ", min_size=1, max_size=40), min_size=1, max_size=60), st.data())
def test_exactly_the_events_before_the_stop_are_delivered_and_counted(words: list[str], data: st.DataObject) -> None:
    stop = data.draw(st.integers(0, len(words) - 1))
    events = [*map(event, words)]
    stream = b"".join([*events[:stop], event("STOP"), *events[stop:], END])
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=5)))
    reads = [stream[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    delivered, fed, hooks, _ = relayed(reads, stops_at(b"STOP"))
    assert delivered == b"".join(events[:stop])
    assert hooks.at_boundary and hooks.reason is EndReason.STOPPING
    alone = EventStream(drop_usage=False)
    for read in whole_events(delivered):
        alone.feed(read)
    assert counted(fed) == counted(alone)


def test_a_usage_that_counts_what_was_withheld_is_forgotten_and_an_earlier_one_counts() -> None:
    whole = event("one") + event("STOP") + END
    _, fed, _, _ = relayed([whole], stops_at(b"STOP"))
    assert counted(fed) == (1, 1, 1)
    early = event("one") + USAGE
    _, fed, _, _ = relayed([early, event("STOP") + END.replace(USAGE, b"")], stops_at(b"STOP"))
    assert counted(fed)[2] == 99


def test_a_later_plugin_sees_what_an_earlier_one_lets_pass_and_may_keep_less() -> None:
    seen: list[bytes] = []
    chunk = event("a") + event("LOW") + event("b") + event("HIGH") + event("c")
    hooks = (stops_at(b"HIGH"), lambda _, data: seen.append(data), stops_at(b"LOW"))
    delivered, _, found, of = relayed([chunk], *hooks)
    assert seen == [event("a") + event("LOW") + event("b")]
    assert delivered == event("a")
    assert (of.refused_by, of.stopped, found.withheld) == ("plugin-0", ERROR, True)


def test_a_plugin_may_raise_its_error_and_then_nothing_of_the_chunk_is_delivered() -> None:
    def raises(_: Exchange, chunk: bytes) -> None:
        if b"STOP" in chunk:
            raise ERROR

    delivered, fed, hooks, of = relayed([event("a"), event("b") + event("STOP")], raises)
    assert (delivered, of.stopped, of.refused_by) == (event("a"), ERROR, "plugin-0")
    assert hooks.reason is EndReason.STOPPING
    assert fed.events == 1


@pytest.mark.parametrize("error", [KeyError("x"), SystemExit(3)])
def test_a_plugin_that_fails_is_named_and_what_it_did_not_see_is_not_delivered(error: BaseException) -> None:
    def fails(_: Exchange, chunk: bytes) -> None:
        raise error

    delivered, fed, hooks, of = relayed([event("a")], fails)
    assert (delivered, fed.events, of.refused_by) == (b"", 0, "plugin-0")
    assert hooks.failure is not None
    assert hooks.reason is EndReason.PLUGIN


def test_no_error_event_is_written_into_an_event_that_was_delivered_in_part() -> None:
    long = event("x" * (1 << 20))
    delivered, _, hooks, _ = relayed([long[:-9], long[-9:] + event("STOP")], stops_at(b"STOP"))
    assert delivered == long and hooks.at_boundary
    delivered, _, hooks, _ = relayed([long[:-9], long[-9:] + event("STOP")], stops_at(long[-9:-5]))
    assert delivered and not hooks.at_boundary
    delivered, fed, hooks, _ = relayed([event("a"), b"data: STOP" + b"x" * (1 << 21)], stops_at(b"STOP"))
    assert (delivered, hooks.at_boundary, fed.output.tokens()) == (event("a"), True, 1)


STOP = Refused(403, "stopped", "Stopped.")


class Closable(Transport):
    """The transport of a caller whose stream is cut off."""

    def close(self) -> None:
        self.calls.append("close")


async def body() -> Body:
    return Body("m", PromptBound(100), True, None, 1, False, 100, 1, 10)


async def test_an_event_that_is_given_when_the_exchange_is_stopped_is_not_charged() -> None:
    exchange, to_caller = Exchange(REQUEST, body), Closable()

    async def events() -> AsyncIterator[bytes]:
        yield event("one")
        exchange.stop(STOP)
        yield event("later " * 1000)

    given = events()
    caller = CallerConnection(Owner(), to_caller, http_1_1=True, keep_alive=True)
    await answer_with_events(exchange, caller, Reply(events=given, charge="as-upstream"), given, AnswerHooks(), set())
    written = b"".join(call for call in to_caller.calls if isinstance(call, bytes))
    assert event("one") in written and b'"stopped"' in written and b"later" not in written
    assert (exchange.outcome, exchange.error, exchange.events) == (Outcome.STOPPED, STOP, 1)
    assert exchange.answer_usage is not None and exchange.answer_usage.completion_tokens == 1


async def test_an_iterator_that_cancels_its_task_ends_the_answer_with_an_error() -> None:
    exchange, to_caller = Exchange(REQUEST, body), Closable()

    async def events() -> AsyncIterator[bytes]:
        yield event("one")
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(PATIENCE_S)

    given = events()
    caller = CallerConnection(Owner(), to_caller, http_1_1=True, keep_alive=True)
    async with asyncio.timeout(PATIENCE_S):
        await answer_with_events(
            exchange, caller, Reply(events=given, charge="as-upstream"), given, AnswerHooks(), set()
        )
    written = b"".join(call for call in to_caller.calls if isinstance(call, bytes))
    assert event("one") in written and b'"internal_error"' in written
    assert exchange.outcome is Outcome.INTERNAL_ERROR


async def test_the_tier_that_the_events_name_is_that_of_the_answer() -> None:
    exchange, to_caller = Exchange(REQUEST, body), Closable()

    async def events() -> AsyncIterator[bytes]:
        yield event("one").replace(b"}\n\n", b', "service_tier": "flex"}\n\n')
        yield (
            event("").replace(b'{"content": ""}', b"{}").replace(b'"index": 0', b'"index": 0, "finish_reason": "stop"')
        )
        yield b"data: [DONE]\n\n"

    given = events()
    caller = CallerConnection(Owner(), to_caller, http_1_1=True, keep_alive=True)
    await answer_with_events(exchange, caller, Reply(events=given, charge="as-upstream"), given, AnswerHooks(), set())
    assert exchange.answer_tier == "flex"
