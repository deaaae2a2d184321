"""The checks of plugins that end streams, keep what they read, or answer with events."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Final

from gateway.chain.failures import PLUGIN_ERRORS
from gateway.chat.deltas import WholeAnswer
from gateway.chat.events import EventStream
from gateway.contract.endings import COMPLETED
from gateway.contract.finding import Finding
from gateway.contract.scenarios import ScenarioRunner
from gateway.contract.watched import ChunkSize, Stops
from gateway.errors import Refused
from gateway.exchange import Exchange
from gateway.reply import Reply

LONG_CHUNKS: Final = 64
LONG_CHUNK: Final = 64 * 1024
MOST_KEPT: Final = 1 << 20
"""Bytes that a plugin may keep of a stream of 4 MiB."""
MOST_EVENTS: Final = 100_000
WHOLE_ANSWERS: Final = (
    b'{"id":"c","choices":[{"index":0,"message":{"role":"assistant","content":"Green"},"finish_reason":"stop"}]}',
    b'{"choices":[]}',
    b"no JSON",
)
CLOSE_S: Final = 2.0
"""How long an iterator may take to end when its caller leaves."""


async def streams(runner: ScenarioRunner) -> Finding:
    """Return the finding on how the plugin treats streams."""
    problems = [*stop_problems(runner.stops), *await _long_stream(runner), *await _whole_answers(runner)]
    reply, exchange = await _reply(runner)
    text = "ends streams" if runner.stops.count else "ends no stream of this check"
    if reply is not None and reply.events is not None:
        problems += await _whole_reply(reply.events)
        await _ended(runner, exchange)
        reply, exchange = await _reply(runner)
        if reply is not None and reply.events is not None:
            problems += await _left_reply(reply.events)
        text = "answers with events"
    await _ended(runner, exchange)
    return Finding.of("streams", problems, text)


def stop_problems(stops: Stops) -> Iterator[str]:
    """Yield what is wrong with how a plugin ended streams."""
    if stops.twice:
        yield "`on_chunk` calls `exchange.stop` again after it has ended the stream: return after the first call"
    if stops.outside:
        yield "`on_chunk` keeps bytes that the chunk does not have: `keep` is from 0 to `len(chunk)`, such as `delta.start`"


async def _long_stream(runner: ScenarioRunner) -> list[str]:
    """Return a problem where the plugin keeps most of a long stream."""
    if not runner.entry.defines("on_chunk"):
        return []
    exchange = await runner.arrived(COMPLETED)
    problems: list[str] = []
    try:
        reply = await runner.request(runner.plugin, exchange)
        if reply is None:
            kept = _kept(runner, exchange)
            if kept > MOST_KEPT:
                whole = LONG_CHUNKS * LONG_CHUNK >> 10
                problems.append(
                    f"keeps {kept >> 10} KiB of a stream of {whole} KiB: keep the end of a text, or no more than a limit"
                )
    except PLUGIN_ERRORS:
        pass  # found by the checks of a request and of its endings
    await _ended(runner, exchange)
    return problems


async def _whole_answers(runner: ScenarioRunner) -> list[str]:
    """Return a problem where the plugin fails at an answer that is not streamed, and not at one that is."""
    if not runner.entry.defines("on_response"):
        return []
    for text in (None, *WHOLE_ANSWERS):
        exchange = await runner.arrived(COMPLETED)
        try:
            if await runner.request(runner.plugin, exchange) is None:
                exchange.texts = None if text is None else WholeAnswer(text)
                runner.plugin.on_response(exchange)
        except Refused:
            pass
        except PLUGIN_ERRORS as error:
            if text is None:  # found by the check of a request
                return []
            told = text.decode()
            return [f"`on_response` raised {type(error).__name__}: {error} for an answer that is not streamed: {told}"]
        finally:
            await _ended(runner, exchange)
    return []


def _kept(runner: ScenarioRunner, exchange: Exchange) -> int:
    """Return how many bytes more are in use after a long stream."""
    traced = tracemalloc.is_tracing()
    if not traced:
        tracemalloc.start()
    try:
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        runner.plugin.on_response(exchange)
        for number in range(LONG_CHUNKS):
            text = (b"word%d " % number) * (LONG_CHUNK // 8)
            chunk = b'data: {"choices":[{"index":0,"delta":{"content":"%b"}}]}\n\n' % text
            exchange.deltas(chunk)
            exchange[ChunkSize] = ChunkSize(len(chunk))
            runner.plugin.on_chunk(exchange, chunk)
            if exchange.stopped is not None:
                break
        exchange.deltas(b"")
        del text, chunk
        gc.collect()
        return tracemalloc.get_traced_memory()[0] - before
    finally:
        if not traced:
            tracemalloc.stop()


async def _reply(runner: ScenarioRunner) -> tuple[Reply | None, Exchange]:
    exchange = await runner.arrived(COMPLETED)
    try:
        return await runner.request(runner.plugin, exchange), exchange
    except PLUGIN_ERRORS:
        return None, exchange  # found by the check of a request


async def _ended(runner: ScenarioRunner, exchange: Exchange) -> None:
    exchange.outcome = COMPLETED.outcome
    with suppress(*PLUGIN_ERRORS):  # found by the checks of the endings
        await runner.end(runner.plugin, exchange)
    await runner.left(exchange)


async def _whole_reply(events: AsyncIterator[bytes]) -> list[str]:
    """Return what is wrong with the events of a reply that is read to its end."""
    stream, count = EventStream(drop_usage=False), 0
    try:
        async with asyncio.timeout(CLOSE_S):
            async for data in events:
                if not isinstance(data, bytes):
                    return [f"the events of its reply are {type(data).__name__}: they must be bytes"]
                stream.feed(data)
                count += 1
                if count > MOST_EVENTS:
                    return [f"the reply has more than {MOST_EVENTS} events and no end"]
        stream.close()
    except TimeoutError:
        return [f"the events of its reply did not end within {CLOSE_S:g} s"]
    except PLUGIN_ERRORS as error:
        return [f"the events of its reply raised {type(error).__name__}: {error}"]
    if stream.error is not None:
        return ["the events of its reply have an error: raise `Refused` instead"]
    return (
        [] if stream.complete else ["the events of its reply end before the answer is whole: end with `data: [DONE]`"]
    )


async def _left_reply(events: AsyncIterator[bytes]) -> list[str]:
    """Return what is wrong with an iterator whose caller leaves after the first event."""
    close = getattr(events, "aclose", None)
    try:
        async with asyncio.timeout(CLOSE_S):
            await anext(events)
            if close is not None:
                await close()
    except TimeoutError:
        return [f"the events of its reply were not closed within {CLOSE_S:g} s when the caller left"]
    except PLUGIN_ERRORS as error:
        return [f"closing the events of its reply raised {type(error).__name__}: {error}"]
    return []
