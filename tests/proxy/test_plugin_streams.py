"""What the iterator of a plugin gives after the end of its answer is neither delivered nor charged."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

from gateway import Exchange, Outcome, Refused, Reply
from gateway.chat.prompt import PromptBound
from gateway.chat.request import Body
from gateway.proxy.caller import CallerConnection
from gateway.proxy.chunk_hooks import AnswerHooks
from gateway.proxy.plugin_streams import answer_with_events
from tests.fuzz.twins import REQUEST, Owner, Transport
from tests.patience import PATIENCE_S

STOP = Refused(403, "stopped", "Stopped.")


class Closable(Transport):
    """The transport of a caller whose stream is cut off."""

    def close(self) -> None:
        self.calls.append("close")


def event(text: str) -> bytes:
    return b"data: %b\n\n" % json.dumps({"choices": [{"index": 0, "delta": {"content": text}}]}).encode()


async def body() -> Body:
    return Body("m", True, None, 1, False, 100, 1, 10, PromptBound(100), {}, {})


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
