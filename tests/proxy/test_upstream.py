"""The private attributes and undocumented behaviour of aiohttp that calls of upstreams rely on, and the heads of answers."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import httptools
import pytest
from aiohttp import ClientRequest, TCPConnector
from aiohttp.connector import Connection
from hypothesis import given, settings
from hypothesis import strategies as st

import gateway
from gateway.proxy.framing import ordinary_head
from gateway.proxy.upstream import AIOHTTP_ATTRIBUTES, BUFFER, READ, SMALL_READ, UpstreamConnection
from tests.fuzz.twins import Pooled, Queue

ROOT = Path(gateway.__file__).parent


def test_aiohttp_has_the_attributes_that_are_not_public() -> None:
    assert [name for name in AIOHTTP_ATTRIBUTES if not hasattr(Connection, name)] == []


def test_the_connector_takes_a_request_without_a_session() -> None:
    """`UpstreamPool.open` passes these three; aiohttp documents the connector only behind a session."""
    assert list(inspect.signature(TCPConnector.connect).parameters) == ["self", "req", "traces", "timeout"]
    parameters = {"method", "url", "loop", "ssl", "proxy", "proxy_headers"}
    assert parameters <= inspect.signature(ClientRequest.__init__).parameters.keys()


def test_no_other_file_calls_the_connector() -> None:
    texts = {str(path.relative_to(ROOT)): path.read_text() for path in ROOT.rglob("*.py")}
    files = {name for name, text in texts.items() if "TCPConnector" in text and "ClientSession" not in text}
    assert files == {"proxy/pool.py"}


def answered(head: bytes) -> Any:
    """Return a connection that has received the head of an answer."""
    connection = UpstreamConnection(Pooled(), Queue())  # type: ignore[arg-type]
    BUFFER[: len(head)] = head
    connection.buffer_updated(len(head))
    return connection


def test_only_those_headers_of_an_answer_are_kept_that_are_read() -> None:
    names = [b"Server", b"Set-Cookie", b"CF-Ray", *(name.title() for name in READ - {b"content-length"})]
    lines = b"".join(b"%b: %b\r\n" % (name, b"chunked" if name == b"Transfer-Encoding" else b"1") for name in names)
    headers = answered(b"HTTP/1.1 200 OK\r\n" + lines + b"\r\n").headers
    assert {name.lower().encode() for name in headers} == READ - {b"content-length"}


def test_the_headers_of_an_interim_response_are_not_those_of_the_answer() -> None:
    head = b"HTTP/1.1 103 Early\r\nX-Request-Id: early\r\n\r\nHTTP/1.1 200 OK\r\nContent-Type: a/b\r\n\r\n"
    connection = answered(head)
    assert (connection.status, dict(connection.headers)) == (200, {"Content-Type": "a/b"})


@pytest.mark.parametrize(
    ("size", "spent", "waits"),
    [
        (SMALL_READ, True, False),
        (SMALL_READ + 1, False, False),
        (SMALL_READ + 1, True, True),
        (len(BUFFER), False, True),
    ],
)
def test_a_long_read_waits_where_there_were_many_or_more_may_follow(*, size: int, spent: bool, waits: bool) -> None:
    connection = answered(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
    passed: list[bytes] = []
    connection.flow_to(passed.append, lambda clean: None)
    connection._turns.spent = spent
    BUFFER[:size] = b"x" * size
    connection.buffer_updated(size)
    assert (connection.queued, b"".join(passed)) == (waits, b"" if waits else b"x" * size)
    connection._turns.run()
    assert b"".join(passed) == b"x" * size


@pytest.mark.parametrize(
    "framing", [b"Content-Length: 2\r\n\r\nok", b"Transfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"]
)
@pytest.mark.parametrize("surplus", [b"", b"H", b"x", b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 200 OK\r\n\r\n"])
async def test_a_connection_with_bytes_behind_the_answer_carries_no_other_request(
    framing: bytes, surplus: bytes
) -> None:
    connection = answered(b"HTTP/1.1 200 OK\r\n" + framing + surplus)
    assert connection.ended
    assert connection.again() == (surplus == b"")


# A head that is read without the parser says what the parser reads of it.
NAMES = (
    *(
        *("Transfer-Encoding", "transfer-encoding", "x-ratelimit-limit", "Content-Length", "Content-Type"),
        "Content-Encoding",
    ),
    *(
        *("Connection", "Trailer", "Upgrade", "X-Request-Id", "request-id", "Server", "CF-RAY", "x-1", "a_b"),
        *("bad name", ""),
    ),
)
VALUES = (
    *("chunked", "Chunked", "gzip, chunked", "identity", "keep-alive", "close", "0", "5", "websocket", "", " ", "\x80"),
    *("text/event-stream", "Text/Event-Stream; charset=utf-8", "application/json", "req-1", "x\ty", "a\x7f", "a\x01"),
)
LINES = st.builds(
    lambda name, colon, value, end: f"{name}{colon}{value}{end}".encode("latin-1"),
    *(st.sampled_from(NAMES), st.sampled_from((": ", ":", ": ", ":  ", " : ", "")), st.sampled_from(VALUES)),
    st.sampled_from(("\r\n",) * 9 + ("\n", " \r\n", "\r\n ")),
)
CHUNKED = b"Transfer-Encoding: chunked\r\n"
STARTS = (b"HTTP/1.1 200 OK\r\n",) * 6 + (
    *(b"HTTP/1.0 200 OK\r\n", b"HTTP/1.1 200 \r\n", b"HTTP/1.1 204 No\r\n", b"HTTP/1.1 200 O\n"),
)


class Parsed:
    """An answer as the parser reads it."""

    def __init__(self, data: bytes) -> None:
        self.headers: list[tuple[str, str]] = []
        self.body, self.whole = b"", False
        self.parser = httptools.HttpResponseParser(self)
        self.parser.feed_data(data)

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.decode().lower(), value.decode("latin-1")))

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.whole = self.parser.should_keep_alive()


@settings(max_examples=1500, deadline=None)
@given(st.sampled_from(STARTS), st.lists(LINES, max_size=4), st.lists(LINES, max_size=2), st.booleans())
def test_a_head_that_is_read_without_the_parser_says_the_same(
    start: bytes, before: list[bytes], after: list[bytes], chunked: bool
) -> None:
    head = start + b"".join((*before, CHUNKED if chunked else b"", *after)) + b"\r\n"
    found = ordinary_head(head)
    if found is None:
        assert chunked is False or before or after or start not in (STARTS[0], b"HTTP/1.1 200 \r\n")
        return
    parsed = Parsed(head + b"5\r\nhello\r\n0\r\n\r\n")
    types = [value for name, value in parsed.headers if name == "content-type"]
    ids = [value for name, value in parsed.headers if name in ("x-request-id", "request-id")]
    assert (found[0], parsed.parser.get_status_code(), parsed.body, parsed.whole) == (len(head), 200, b"hello", True)
    assert found[1] == (types[0].partition(";")[0].strip().lower() if types else "")
    assert found[2] or not ids
    assert not {"content-encoding", "content-length", "upgrade", "trailer"} & {name for name, _ in parsed.headers}
