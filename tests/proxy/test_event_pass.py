"""Which reads the compiled path of events takes, and when it is used."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.proxy import event_pass
from gateway.proxy.event_pass import BUFFER
from tests.fuzz.twins import KEY, Clock, Twin, connections

compiled = pytest.mark.skipif(bool(event_pass.WHY_PURE), reason=event_pass.WHY_PURE)
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"%b"},"finish_reason":null}]}\n\n'
PLAIN = EVENT % b"word"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


@pytest.fixture
def clock() -> Iterator[Clock]:
    """Yield the event loop of a test that is not a coroutine, with a time that the test moves."""
    loop = Clock()
    yield loop
    loop.close()


def filling_the_buffer() -> bytes:
    """Return chunks of plain events, which fill the buffer of a read to the last byte."""
    most = (len(BUFFER) // len(chunk(PLAIN)) - 2) * chunk(PLAIN)
    last = (chunk(PLAIN.replace(b'"}', b'%b"}' % (b"x" * size))) for size in range(1000))
    return next(most + each for each in last if len(most) + len(each) == len(BUFFER))


def taken(
    clock: Clock, *reads: bytes, max_bytes: int = 1 << 20, hooked: bool = False, http_1_1: bool = True
) -> list[bool]:
    """Return of each read whether the compiled path took it, after a head and a first event in reads of their own."""

    async def run() -> list[bool]:
        twin = Twin(connections(True), max_bytes=max_bytes, hooked=hooked, http_1_1=http_1_1)
        found = []
        for data in (HEAD, chunk(PLAIN), *reads):
            before = twin.upstream.received
            twin.read(data)
            found.append(twin.upstream.received == before)
        twin.close()
        return found[2:]

    return clock.run_until_complete(run())


@compiled
def test_it_takes_every_plain_event_after_the_first(clock: Clock) -> None:
    assert taken(clock, *100 * [chunk(PLAIN)]) == 100 * [True]
    assert taken(clock, 5 * chunk(PLAIN)) == [True]
    assert taken(clock, chunk(EVENT % rb"a long text with escapes: \u00e4 \n \"quoted\" \\\\u0041")) == [True]


@compiled
@pytest.mark.parametrize(
    "read",
    [
        chunk(PLAIN.replace(b"null", b'"stop"')),
        chunk(PLAIN.replace(b"finish_reason", b"usage").replace(b"null", b"{}")),
        chunk(PLAIN.replace(b"finish_reason", b"error").replace(b"null", b"{}")),
        chunk(EVENT % KEY.encode()),
        chunk(PLAIN.replace(b"null}]}", b"null}]} " + KEY.encode())),
        chunk(EVENT % b"a\r"),
        chunk(PLAIN.replace(b"\n\n", b"\r\n\r\n")),
        chunk(b'data: {"message":"overloaded"}\n\n'),
        chunk(b"data: [DONE]\n\n"),
        chunk(b": ping\n\n"),
        chunk(b"id: 1\n" + PLAIN),
        chunk(PLAIN[:-1]),
        chunk(PLAIN)[:-1],
        chunk(PLAIN)[:-2] + b"\n\n",
        chunk(PLAIN)[:-1] + b"\r",
        chunk(PLAIN).replace(b"\r\n", b";extension\r\n", 1),
        chunk(PLAIN) + chunk(PLAIN[:20]),
        filling_the_buffer(),
        b"0\r\n\r\n",
    ],
)
def test_it_leaves_everything_else_and_goes_on_behind_it(clock: Clock, read: bytes) -> None:
    assert taken(clock, chunk(PLAIN), read)[:2] == [True, False]


@compiled
def test_it_takes_no_read_within_a_chunk_that_looks_like_one(clock: Clock) -> None:
    inner = chunk(PLAIN)
    whole = chunk(PLAIN + inner + b"\n\n")
    cut = whole.index(inner)
    assert taken(clock, whole[:cut], inner, whole[cut + len(inner) :]) == [False, False, False]


@compiled
def test_it_leaves_what_exceeds_the_limit_of_a_response(clock: Clock) -> None:
    assert taken(clock, *3 * [chunk(PLAIN)], max_bytes=3 * len(PLAIN)) == [True, True, False]
    assert taken(clock, *3 * [chunk(PLAIN)], max_bytes=3 * len(PLAIN) - 1) == [True, False, False]


@compiled
def test_it_leaves_all_where_plugins_see_chunks_or_the_caller_cannot_take_chunks(clock: Clock) -> None:
    assert taken(clock, chunk(PLAIN), hooked=True) == [False]
    assert taken(clock, chunk(PLAIN), http_1_1=False) == [False]


@compiled
def test_one_that_was_built_from_another_source_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = tmp_path / "_pass.pyx"
    changed.write_bytes(event_pass.SOURCE.read_bytes() + b"\n")
    monkeypatch.setattr(event_pass, "SOURCE", changed)
    assert event_pass.load() == (None, "the compiled path was built from another version, install again")


def test_without_it_every_read_is_received() -> None:
    assert issubclass(connections(False), event_pass.PurePass)
