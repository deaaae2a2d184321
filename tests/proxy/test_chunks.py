"""Which reads of an upstream's answer are taken without its parser, and which relays see them."""

from __future__ import annotations

import asyncio
import random
import socket

import pytest

from gateway.base.compiled import WHY_PURE
from gateway.proxy.caller import CallerConnection
from gateway.proxy.framing import begin_of_chunk, whole_chunks
from tests.fuzz.twins import Owner, Twin

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"%b"},"finish_reason":null}]}\n\n'
PLAIN = EVENT % b"word"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def test_whole_chunks_are_taken() -> None:
    assert whole_chunks(chunk(PLAIN)) == PLAIN == chunk(PLAIN)[begin_of_chunk(chunk(PLAIN)) : -2]
    assert whole_chunks(5 * chunk(PLAIN)) == 5 * PLAIN
    assert begin_of_chunk(2 * chunk(PLAIN)) == begin_of_chunk(b"0" + chunk(PLAIN)) == 0
    assert whole_chunks(b"0a\r\n" + b"x" * 10 + b"\r\n") == b"x" * 10


@pytest.mark.parametrize(
    "read",
    [
        b"",
        b"\r\n",
        chunk(PLAIN)[:-1],
        chunk(PLAIN)[:-2] + b"\n\n",
        chunk(PLAIN)[:-1] + b"\r",
        chunk(PLAIN).replace(b"\r\n", b";extension\r\n", 1),
        chunk(PLAIN).replace(b"\r\n", b"\n", 1),
        chunk(PLAIN) + chunk(PLAIN[:20])[:9],
        chunk(PLAIN) + b"1",
        b" " + chunk(PLAIN),
        b"+" + chunk(PLAIN),
        b"0x" + chunk(PLAIN),
        b"000000" + chunk(PLAIN),
        b"0\r\n\r\n",
        chunk(PLAIN) + b"0\r\n\r\n",
    ],
)
def test_everything_else_is_left_to_the_parser(read: bytes) -> None:
    assert whole_chunks(read) == b""
    assert begin_of_chunk(read) == 0


async def test_no_read_is_taken_within_a_chunk_that_looks_like_one() -> None:
    inner = chunk(PLAIN)
    whole = chunk(PLAIN + inner + b"\n\n")
    cut = whole.index(inner)
    for reads in ([whole[:cut], inner, whole[cut + len(inner) :]], [b"1", inner, b"x" * 252 + b"\n\n\r\n"]):
        twins = [Twin(max_bytes=1 << 20) for _ in range(2)]
        for data in (HEAD, chunk(PLAIN), *reads):
            twins[0].read(data)
        twins[1].read(b"".join((HEAD, chunk(PLAIN), *reads)))
        one, other = (twin.relay.events.output.tokens() for twin in twins)
        assert (one, twins[0].exchange.bytes, twins[0].upstream._state) == (
            other,
            twins[1].exchange.bytes,
            twins[1].upstream._state,
        )
        for twin in twins:
            twin.close()


async def test_chunks_arrive_in_order_however_much_the_kernel_takes_of_one() -> None:
    loop, choice = asyncio.get_running_loop(), random.Random(1)
    near, far = socket.socketpair()
    far.setblocking(False)
    near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    transport, _ = await loop.create_connection(asyncio.Protocol, sock=near)
    caller = CallerConnection(Owner(), transport, http_1_1=True, keep_alive=True)
    caller.begin(b"the head\r\n", b"")
    sent, received, directly = b"the head\r\n", b"", 0
    with far:
        for number in range(3000):
            event = EVENT % (b"%d " % number * choice.choice((1, 1, 1, 40, 1000)))
            if choice.random() < 0.1:
                caller.write(event)
            else:
                caller.write_chunk(chunk(event))
            sent += chunk(event)
            directly += caller._flushed
            if caller.unsent or choice.random() < 0.1:
                received += await loop.sock_recv(far, choice.choice((100, 10_000, 1_000_000)))
        caller.finish()
        transport.close()
        while data := await loop.sock_recv(far, 1_000_000):
            received += data
    assert received == sent + b"0\r\n\r\n"
    assert (directly == 0) if WHY_PURE else (0 < directly < 3000)
