"""Random answers for a relay, compiled and in pure Python, which must do the same: `python -m tests.fuzz.compare READS [SEED]`.

Two processes print what they did of each answer, and the lines are compared.

An answer is events in chunks, mostly as upstreams send them and sometimes damaged, cut into reads. Between the reads the caller
may leave or stop reading, and time passes.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from hashlib import sha256
from random import Random
from typing import Any, Final

from gateway.base import compiled
from gateway.proxy.caller import CallerConnection
from gateway.proxy.chunk_hooks import EndReason
from tests.fuzz.twins import KEY, Clock, Twin

HEAD: Final = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
TEXT: Final = b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"%b"},"finish_reason":null}]}\n\n'
OTHERS: Final = (
    b'data: {"id":"c","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n',
    b'data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":7}}\n\n',
    b'data: {"choices":[{"index":0,"delta":{"content":"x"}}],"usage":{"prompt_tokens":5,"completion_tokens":7}}\n\n',
    b'data: {"choices":[{"index":0,"delta":{"content":"x"}}],"usage":null,"error":null}\n\n',
    b'data: {"choices":[{"index":1,"delta":{"content":"x"}}]}\n\n',
    *(b'data: {"error":{"message":"no"}}\n\n', b'data: {"error":{"message":"no"},"choices":[]}\n\n'),
    *(b'data: {"message":"overloaded"}\n\n', b"data: [DONE]\n\n", b": ping\n\n"),
    b'data: {"choices":[],"prompt_filter_results":[{"prompt_index":0}]}\n\n',
    *(b'data: {"choices":[],"usage":null}\n\n', b'event: error\ndata: {"choices":[]}\n\n'),
    *(b'data: {"choices":[]}\r\n\r\n', b'data:{"choices":[]}\n\n', b'data: {"choices":[],"choices":[]}\n\n'),
    *(b'data: {"choices":[]}\revent: error\n\n', b'data: {"choices":[]}\rerror: no\n\n'),
    b'data: {"choices":[]}\r\rdata: {"choices":[]}\n\n',
)
PIECES: Final = (
    *(
        *(b'"finish_reason"', b'"finish_reason":', b'"usage"', b'"usage":', b'"error"', b":null", b":nul"),
        *(b": null", b'"choices":[', b'"choices":[]'),
    ),
    *(
        *(b'"', b'\\"', b"\\", b":", b"\n", b"\r", b"\n\n", b"\r\n", b"\r\n\r\n", b"data: {", b"data: ", b"{"),
        *(b"}", b"\0", b"\xff"),
    ),
    *(
        *(b"\xc2\x85", b"\x0b", b"\xef\xbb\xbf"),
        KEY.encode(),
        KEY.encode()[:9],
        *(b"[DONE]", b'"usage"usage":1', b"\revent: error", b"\rerror: 1", b"\r\r", b'"error":null"error":1'),
    ),
)
LONGEST_STREAM: Final = 80
MODULE: Final = "tests.fuzz.compare"


def text(random: Random) -> bytes:
    """Return the text of an event, mostly short."""
    chance = random.random()
    if chance < 0.01:
        return b"x" * random.randrange(900, 5000)
    if chance < 0.02:
        return KEY.encode()
    return bytes(random.choices(b"abcdefgh ,.{}[]:", k=random.randrange(24)))


def damaged(random: Random) -> bytes:
    """Return an event with some bytes replaced."""
    made = bytearray(TEXT % text(random))
    for _ in range(random.randrange(1, 3)):
        at = random.randrange(len(made) + 1)
        made[at : at + random.randrange(3)] = random.choice(PIECES)
    return bytes(made)


def chunk(random: Random, data: bytes) -> bytes:
    """Return data as a chunk, nearly always as most servers send it."""
    form = random.choice((b"%X", b"%04x", b"%x;a=b", b"0%x", b"%x ", b"%06X")) if random.random() < 0.02 else b"%x"
    return form % len(data) + b"\r\n" + data + b"\r\n"


def nested(random: Random, event: bytes) -> list[bytes]:
    """Return the writes of one chunk, of which the middle one looks like a whole chunk."""
    inner = b"%x\r\n" % len(event) + event + b"\r\n"
    if random.random() < 0.5 or not 16 <= len(event) < 256:
        whole = chunk(random, TEXT % b"a" + inner + b"\n\n")
        cut = whole.index(inner)
        return [whole[:cut], inner, whole[cut + len(inner) :]]
    return [b"1", inner, b"x" * 252 + b"\n\n\r\n"]  # 256 bytes more, of which two are a line end within the chunk


class Pool:
    """Events to choose from, which are made once."""

    def __init__(self, random: Random) -> None:
        self.plain = [TEXT % text(random) for _ in range(500)]
        self.other = [damaged(random) for _ in range(1500)] + 40 * list(OTHERS)
        self.chunks = [chunk(random, event) for event in self.plain]


def body(random: Random, pool: Pool) -> list[bytes]:
    """Return what the server writes, one item for each write."""
    damage = random.choice((0.0, 0.02, 0.05, 0.2))  # one damaged event often ends a stream
    writes: list[bytes] = []
    for _ in range(random.randrange(1, LONGEST_STREAM)):
        regular, style = random.random() >= damage, random.random()
        if regular and style < 0.8:
            writes.append(random.choice(pool.chunks))
            continue
        many = 1 if style < 0.9 else random.randrange(2, 25)
        events = [random.choice(pool.plain if regular else pool.other) for _ in range(many)]
        if random.random() < 0.8:
            writes.append(b"".join([chunk(random, each) for each in events]))
        else:  # cut anywhere, or not at all
            data = b"".join(events)
            cut = random.randrange(len(data))
            writes.append(b"".join([chunk(random, part) for part in (data[:cut], data[cut:]) if part]))
        if not regular and random.random() < 0.1:
            writes += nested(random, events[0])
        if not regular and random.random() < 0.05:
            broken = bytearray(writes[-1])
            broken[random.choice((random.randrange(len(broken)), -1, -2))] = random.choice(b'\0\r\n;0a"Z\xff')
            writes[-1] = bytes(broken)
    if random.random() < 0.5:
        writes.append(b"0\r\n\r\n")
    return writes


def reads(random: Random, pool: Pool) -> list[bytes]:
    """Return what the reads of the socket bring."""
    brought: list[bytes] = []
    for index, write in enumerate((HEAD, *body(random, pool))):
        chance = random.random()
        if chance < 0.06 and index:
            brought[-1] += write
        elif chance < 0.1 and len(write) > 1:
            at = sorted(random.choices(range(1, len(write)), k=random.choice((1, 1, 2, 5))))
            brought += [write[begin:end] for begin, end in zip((0, *at), (*at, len(write)), strict=True) if begin < end]
        else:
            brought.append(write)
    return [data[begin : begin + 16384] for data in brought for begin in range(0, len(data), 16384)]


def outcome(loop: Clock, pool: Pool, seed: int) -> tuple[int, str]:
    """Return of one answer how many reads there were, and all that was seen after each of some reads and at the end."""
    random = Random(seed)
    brought = reads(random, pool)
    settings: dict[str, Any] = {
        "max_bytes": random.choice((1 << 26,) * 9 + (random.randrange(1, 9000),)),
        "choices": random.choice((1,) * 30 + (2,)),
        "asked_usage": random.random() < 0.5,
        "http_1_1": random.random() < 0.97,
        "hooked": random.random() < 0.03,
        "credential": random.choice((KEY,) * 5 + ("",)),
        "drain": random.random() < 0.5,
        "empty_choices": random.choice(("drop", "pass")),
    }
    twin = Twin(**settings)
    disturbed, closely = random.random() < 0.3, random.random() < 0.1
    seen: list[object] = [settings]
    number = 0
    for number, data in enumerate(brought, 1):
        loop.now += random.choice((0.0, 0.001, 0.01, 0.2, 1.5))
        action = random.random() if disturbed else 1.0
        twin.turns.run()
        twin.turns.spent = random.random() < 0.5
        if twin.reading:
            twin.read(data)
        disturb(twin, action)
        if closely:
            seen.append(twin.seen())
        if twin.relay.ended.done() and number > random.random() * len(brought):
            break
    seen += [twin.seen(), twin.relay.rest(), twin.relay.events.complete, twin.relay.events.output.tokens()]
    twin.close()
    return number, repr(seen)


def outcomes(seed: int) -> Iterator[tuple[int, str]]:
    """Yield the outcome of an answer for each seed from this one on."""

    async def run(number: int) -> tuple[int, str]:
        return outcome(loop, pool, number)

    loop, pool = Clock(), Pool(Random(0))
    try:
        for number in itertools.count(seed):
            yield loop.run_until_complete(run(number))
    finally:
        loop.close()


def disturb(twin: Twin, action: float) -> None:
    """Let the caller leave, stop reading or read again, the gateway stop, or surplus bytes be discarded."""
    caller: CallerConnection = twin.caller
    if action < 0.01:
        caller.connection_lost()
    elif action < 0.02:
        twin.relay.end(EndReason.STOPPING)
    elif action < 0.03:
        twin.relay.ended.cancel()
    elif action < 0.06 and caller.on_flow is not None:
        caller.on_flow(True)
    elif action < 0.12 and caller.on_flow is not None:
        caller.on_flow(False)
    elif action < 0.125:
        twin.upstream.flow_to(lambda data: None, lambda clean: None)


def compare(count: int, seed: int, seconds: float = float("inf")) -> tuple[int, int]:
    """Compare until `count` reads are compared or `seconds` have passed. Return how many reads and answers were compared."""
    ends, compared, number = time.monotonic() + seconds, 0, seed
    command = [sys.executable, "-m", MODULE, "print", str(seed)]
    pure = subprocess.Popen(command, env=os.environ | {"GATEWAY_PURE": "1"}, stdout=subprocess.PIPE, text=True)
    assert pure.stdout is not None
    try:
        for number, (size, seen) in enumerate(outcomes(seed), seed):
            digest = pure.stdout.readline().strip()
            assert digest == sha256(seen.encode()).hexdigest(), (
                f"seed {number}: `python -m {MODULE} print {number} --whole` shows both"
            )
            compared += size
            if compared >= count or time.monotonic() >= ends:
                break
    finally:
        pure.kill()
        pure.wait()
        pure.stdout.close()
    return compared, number - seed + 1


if __name__ == "__main__":
    if sys.argv[1] == "print":
        shown = "--whole" in sys.argv
        for _, line in outcomes(int(sys.argv[2])):
            print(line if shown else sha256(line.encode()).hexdigest(), flush=True)
    began = time.monotonic()
    read, answers = compare(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1)
    path = compiled.description()
    print(f"{read} reads of {answers} answers, {path}, are as in pure Python, {time.monotonic() - began:.0f} s")
