"""The checks of plugins that read whole answers, answer with events, or provide a dialect.

Each dialect is asked as for a request, and given events that it may not know.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

import msgspec

from gateway.base.errors import Refused
from gateway.chain.entry import PLUGIN_ERRORS, describe_error
from gateway.chain.plugin import Plugin
from gateway.chat.answers import GatheredCompletion, WholeAnswer, texts
from gateway.chat.dialect import AnswerDelta, Dialect
from gateway.chat.events import EventStream
from gateway.chat.request import decode
from gateway.chat.sse import parse_event
from gateway.config.channel import auth_of, check_headers
from gateway.config.decode import WrongSetting
from gateway.domain.exchange import Exchange
from gateway.domain.reply import Reply
from gateway.plugin_kit.finding import COMPLETED, Finding, an
from gateway.plugin_kit.scenarios import ScenarioRunner
from gateway.proxy.chunk_hooks import Rewriting
from gateway.testing import chat_request

MOST_EVENTS: Final = 100_000
WHOLE_ANSWERS: Final = (
    b'{"id":"c","choices":[{"index":0,"message":{"role":"assistant","content":"Green"},"finish_reason":"stop"}]}',
    b'{"choices":[]}',
    b"no JSON",
)
SAMPLE: Final = (
    "Grüße: 4111 1111 1111 1111, name@example.com, +49 170 1234567, https://example.com/?key=sk-0123456789abcdef."
)
PIECES: Final = (1, 3, 16, 10_000)
"""Characters of each event of an answer."""
LONG: Final = 1000
CLOSE_S: Final = 2.0
"""How long an iterator may take to end when its caller leaves."""

LIMIT: Final = 4711
UNKNOWN: Final = (("ping", b'{"type":"ping"}'), ("", b'{"type":"not-known-here"}'))
"""Events that upstreams send and that no dialect knows."""
BROKEN: Final = (b"{}", b"no JSON", b"\xff", b"[]", b'"text"', b"null")
"""Events that may end an answer with an error."""
FRAMES: Final = (b"", b"{}", b"{}\n", b"data: {}\n\n", b"\n", b"\r\n\r\n")
ERRORS: Final = ((500, b"oops"), (401, b'{"error":{"message":"no"}}'), (429, b""), (529, b"[]"))


async def streams(runner: ScenarioRunner) -> Finding:
    """Return the finding on how the plugin treats streams."""
    problems = await _whole_answers(runner) + await _deltas_of(runner)
    reply, exchange = await _reply(runner)
    changes = runner.entry.defines("on_delta")
    text = "makes the same text wherever the events of an answer end" if changes else "answers with no events"
    if reply is not None and reply.events is not None:
        problems += await _whole_reply(reply.events)
        await _ended(runner, exchange)
        reply, exchange = await _reply(runner)
        if reply is not None and reply.events is not None:
            problems += await _left_reply(reply.events)
        text = "answers with events"
    await _ended(runner, exchange)
    return Finding.of("streams", problems, text)


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


async def _deltas_of(runner: ScenarioRunner) -> list[str]:
    """Return what is wrong with the texts that `on_delta` makes: they may not depend on where the events of an answer end."""
    if not runner.entry.defines("on_delta"):
        return []
    made = set()
    try:
        for size in PIECES:
            made.add(await _changed(runner, size))
        await _changed(runner, len(SAMPLE), SAMPLE * LONG)
    except Refused:
        return []
    except PLUGIN_ERRORS as error:
        return [f"`on_delta` raised {describe_error(error)}"]
    cure = "hold back the end of `delta.text` that may be the beginning of what it looks for"
    return (
        [] if len(made) == 1 else [f"`on_delta` makes other texts where the events of an answer end elsewhere: {cure}"]
    )


async def _changed(runner: ScenarioRunner, size: int, text: str = "") -> str:
    """Return what a plugin makes of a text, in pieces of a size. Without one, it has what the request says."""
    exchange = await runner.arrived(COMPLETED)
    try:
        await runner.request(runner.plugin, exchange)
        if not text:
            said = (await exchange.body()).top["messages"]
            text = f"{SAMPLE} {' '.join(each.text for each in texts({'choices': [{'message': decode(said)[-1]}]}))}"
        rewriting = Rewriting(exchange, "check", runner.plugin.on_delta)
        gathered = GatheredCompletion()
        for at in range(0, len(text) + size, size):
            choice = {"index": 0, "delta": {"content": text[at : at + size]}}
            choice["finish_reason"] = None if at < len(text) else "stop"
            event = rewriting.events(b"data: %b\n\n" % msgspec.json.encode({"choices": [choice]}))
            gathered.add(parse_event(event)[1])
        return str(decode(gathered.encode())["choices"][0]["message"]["content"])
    finally:
        await _ended(runner, exchange)


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


async def dialects(plugin: Plugin) -> Finding:
    """Return the finding on all dialects of a plugin."""
    problems, names = list[str](), list[str]()
    for kind in plugin.dialects:
        try:
            dialect = kind()
        except PLUGIN_ERRORS as error:
            problems.append(f"{getattr(kind, '__name__', kind)} cannot be made: {describe_error(error)}")
            continue
        if not isinstance(dialect, Dialect):
            problems.append(f"`dialects` has {an(dialect)}: name classes that derive from gateway.Dialect")
            continue
        names.append(str(getattr(dialect, "name", "")))
        for part in (_named, _frame, _request, _reader, _error):
            problems += [f"dialect `{names[-1]}`: {text}" for text in _tried(part, dialect)]
    return Finding.of("dialects", problems, ", ".join(names) or "no dialects")


def _tried(part: Any, dialect: Dialect) -> Iterator[str]:
    try:
        yield from part(dialect)
    except PLUGIN_ERRORS as error:
        yield f"`{part.__name__[1:]}` raised {describe_error(error)}"


def _named(dialect: Dialect) -> Iterator[str]:
    name, path, auth = (getattr(dialect, each, None) for each in ("name", "path", "auth"))
    if not isinstance(name, str) or not name:
        yield "`name` is what channels write: give it a text"
    if not isinstance(path, str) or not path.startswith("/"):
        yield f"`path` must begin with a slash, as in '/messages', and is {path!r}"
    way = None
    try:
        way = auth_of(auth) if isinstance(auth, str) else None
    except WrongSetting as wrong:
        yield str(wrong)
    else:
        if way is None:
            yield f"`auth` must be `bearer`, `header NAME` or `query NAME`, and is {auth!r}"
    headers = getattr(dialect, "headers", None)
    if not isinstance(headers, Mapping) or not all(isinstance(text, str) for pair in headers.items() for text in pair):
        yield f"`headers` must be a dict of text, and is {headers!r}"
        return
    try:
        check_headers(headers, way, has_credentials=True)
    except WrongSetting as wrong:
        yield f"`headers`: {'.'.join(map(str, wrong.key_path[1:]))}: {wrong}"


def _frame(dialect: Dialect) -> Iterator[str]:
    for data in FRAMES:
        made: object = dialect.frame(bytearray(data), 0)
        right = isinstance(made, tuple) and len(made) == 3 and [*map(type, made)] == [int, str, bytes]
        if made is not None and not (right and 0 < made[0] <= len(data)):  # type: ignore[index]
            yield f"`frame` returns {made!r}: it must return the size, the name and the data of the first event, or None"
            return


def _request(dialect: Dialect) -> Iterator[str]:
    sent: object = dialect.request(chat_request(model="the-name-of-the-upstream", max_tokens=LIMIT))
    if not isinstance(sent, bytes):
        yield f"`request` returns {an(sent)}: it must return the body as bytes"
        return
    try:
        body = msgspec.json.decode(sent)
    except (msgspec.DecodeError, UnicodeDecodeError):
        yield "`request` returns what is no JSON"
        return
    if not isinstance(body, dict):
        yield f"`request` returns {an(body)} in JSON: it must be an object, since channels add fields to it"
    if str(LIMIT).encode() not in sent:
        yield "`request` does not send `chat.max_tokens`, by which the request is priced and held"


def _reader(dialect: Dialect) -> Iterator[str]:
    reader: Any = dialect.reader()
    if not callable(getattr(reader, "read", None)):
        yield f"`reader` returns {'None' if reader is None else an(reader)}: it must return an AnswerReader"
        return
    if dialect.reader() is reader:
        yield "`reader` returns one reader twice: make a new one for each answer"
    for name, data in UNKNOWN:
        try:
            yield from _deltas(dialect.reader().read(name, data))
        except PLUGIN_ERRORS as error:
            yield f"`read` raised {describe_error(error)} for the event {data.decode()}: pass over what is not known"
    for data in BROKEN:
        with suppress(Exception):  # it ends the answer with an error, as it may
            yield from _deltas(dialect.reader().read("", data))


def _deltas(found: object) -> Iterator[str]:
    if not hasattr(found, "__iter__"):
        yield f"`read` returns {'None' if found is None else an(found)}: it must return or yield each AnswerDelta"
        return
    for delta in found:
        if not isinstance(delta, AnswerDelta):
            yield f"`read` gives {an(delta)}: it must give an AnswerDelta for each thing that an event says"
            return


def _error(dialect: Dialect) -> Iterator[str]:
    for status, body in ERRORS:
        made: object = dialect.error(status, body)
        if not (isinstance(made, tuple) and len(made) == 2 and type(made[0]) is int and isinstance(made[1], bytes)):
            yield f"`error` returns {made!r}: it must return the status, and the body as bytes"
            return
