"""The checks of the dialects that a plugin provides: each is asked as for a request, and given events that it may not know."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

import msgspec

from gateway.chain.failures import PLUGIN_ERRORS, describe_error
from gateway.chat.dialect import AnswerDelta, Dialect
from gateway.config.channel_request import auth_of, check_headers
from gateway.config.section import WrongSetting
from gateway.contract.finding import Finding
from gateway.contract.words import an
from gateway.plugin import Plugin
from gateway.testing import chat_request

LIMIT: Final = 4711
UNKNOWN: Final = (("ping", b'{"type":"ping"}'), ("", b'{"type":"not-known-here"}'))
"""Events that upstreams send and that no dialect knows."""
BROKEN: Final = (b"{}", b"no JSON", b"\xff", b"[]", b'"text"', b"null")
"""Events that may end an answer with an error."""
ERRORS: Final = ((500, b"oops"), (401, b'{"error":{"message":"no"}}'), (429, b""), (529, b"[]"))


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
        for part in (_named, _request, _reader, _error):
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
