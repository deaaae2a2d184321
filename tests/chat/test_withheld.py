"""What a stream that a plugin ends is charged is a function of the events that were delivered, however TCP cuts them."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest

from gateway import Exchange, Refused
from gateway.chat.events import KEPT
from gateway.chat.sse import whole_events
from gateway.domain.exchange import Attempt
from gateway.domain.facts import Candidate
from gateway.proxy.ending import meter_stream
from gateway.proxy.relay import RelayState
from plugins.anthropic import Messages
from tests.fuzz.twins import KEY, Twin
from tests.plugins.anthropic_streams import STREAMS, wire
from tests.proxy.test_chunks import HEAD, chunk

STOP: Final = Refused(400, "stopped", "Stopped.")
DONE: Final = b"data: [DONE]\n\n"


def event(delta: dict[str, Any], finish: str | None = None, index: int = 0, **more: object) -> bytes:
    choice = {"index": index, "delta": delta, "finish_reason": finish}
    return b"data: %b\n\n" % json.dumps({"id": "c1", "choices": [choice], **more}).encode()


def usage(tokens: int) -> dict[str, int]:
    return {"prompt_tokens": 7, "completion_tokens": tokens, "total_tokens": 7 + tokens}


def report(tokens: int) -> bytes:
    return b"data: %b\n\n" % json.dumps({"choices": [], "usage": usage(tokens)}).encode()


ROLE: Final = event({"role": "assistant", "content": ""})
TEXTS: Final = [event({"content": text}) for text in ("One", " two and three", " f\u00fcnf \u516d", " seven" * 9, ".")]
PLAIN: Final = [b": hello\n\n", ROLE, *TEXTS, event({}, "stop"), report(20), DONE]
CALL: Final = {"index": 0, "function": {"name": "f", "arguments": '{"a": 1}'}}
RECORDED: Final = {
    "plain": PLAIN,
    "carriage returns": [each.replace(b"\n", b"\r\n") for each in PLAIN],
    "usage in between": [ROLE, TEXTS[0], report(1), TEXTS[1], report(4), TEXTS[2], event({}, "stop"), report(20), DONE],
    "usage in each": [ROLE, *(event({"content": f"word {at}"}, usage=usage(2 * at)) for at in range(5)), DONE],
    "tools": [ROLE, event({"tool_calls": [CALL]}), event({"content": "x" * 1100}), TEXTS[3], event({}, "stop"), DONE],
    "choices": [event({"content": f"{at} words"}, index=at % 2) for at in range(6)] + [report(9), DONE],
    "an error": [ROLE, TEXTS[0], TEXTS[1], b'data: {"error":{"message":"x","type":"y"}}\n\n'],
}


class Stops:
    """Ends the stream before one event of it, told by its bytes."""

    def __init__(self, event: bytes) -> None:
        self.event = event

    def __call__(self, exchange: Exchange, chunk: bytes) -> None:
        if (at := chunk.find(self.event)) >= 0:
            exchange.stop(STOP, keep=at)


def recorded(reads: list[bytes], stop: bytes, **options: Any) -> tuple[object, ...]:
    """Return what the caller gets and all of the record that is not a time, of an answer with these reads."""
    twin = Twin(max_bytes=1 << 24, hook=Stops(stop), **options)
    if twin.relay.translation is not None:
        twin.relay.translation._created = 1
    for read in [HEAD, *(chunk(read) for read in reads if read)]:
        for at in range(0, len(read), 16_000):
            twin.read(read[at : at + 16_000])
            twin.turns.run()
    relay, exchange = twin.relay, twin.exchange
    assert relay.withheld and exchange.stopped is STOP
    attempt = Attempt("a", "m")
    if relay.state is not RelayState.COLLECTING:
        meter_stream(attempt, relay, twin.body, Candidate("a", twin.channel, "m", None), by_time=0)
    written = b"".join(call for call in twin.to_caller.calls if isinstance(call, bytes))
    sent = written.partition(b"\r\n\r\n")[2]
    twin.close()
    return (
        without_sizes(sent),
        exchange.events,
        exchange.bytes,
        relay.events.completion_id,
        attempt.usage,
        attempt.reported,
    )


def without_sizes(body: bytes) -> bytes:
    """Return a body of HTTP chunks without their sizes."""
    found = b""
    while body:
        size, _, body = body.partition(b"\r\n")
        found, body = found + body[: int(size, 16)], body[int(size, 16) + 2 :]
    return found


@pytest.mark.parametrize("name", RECORDED)
async def test_no_cut_changes_the_charge_or_the_record(name: str) -> None:
    events = RECORDED[name]
    data = b"".join(events)
    options = {"choices": 2} if name == "choices" else {}
    relayed = [each for each in events if b'"choices": []' not in each and b'"error"' not in each]
    for place, stop in enumerate(relayed):
        expected = recorded([data], stop, **options)
        assert expected[0] == b"".join(relayed[:place])
        assert recorded(list(whole_events(data + b".")), stop, **options) == expected
        begin, size = data.index(stop), len(stop)
        # Every cut of the event and at its edges, few of those before it, which are near to other events, and behind it.
        near = range(max(1, begin - 8), begin + size + 8)
        for cut in (*range(1, near.start, 11), *near, *range(near.stop, len(data), 16)):
            assert recorded([data[:cut], data[cut:]], stop, **options) == expected, (place, cut)


@pytest.mark.parametrize("name", ["text", "thinking"])
async def test_no_cut_changes_them_where_the_upstream_speaks_another_dialect(name: str) -> None:
    data = wire(STREAMS[name])
    for marker in (b'"role":"assistant"', b'"content":', b'"finish_reason":"'):
        expected = recorded([data], marker, dialect=Messages())
        for cut in range(1, len(data), 5):
            assert recorded([data[:cut], data[cut:]], marker, dialect=Messages()) == expected, cut


async def test_a_long_stream_is_counted_as_what_was_delivered_of_it() -> None:
    words = [event({"content": "word " * (at % 7 + 1)}) for at in range(3 * KEPT // 200)]
    stop = event({"content": "the end"})
    data = b"".join([ROLE, *words[:400], report(3), *words[400:], stop, *words, event({}, "stop"), report(9000), DONE])
    expected = recorded([data], stop)
    assert expected[1] == 1 + len(words)
    for size in (1, 3, 100):
        events = list(whole_events(data))
        reads = [b"".join(events[at : at + size]) for at in range(0, len(events), size)]
        assert recorded(reads, stop) == expected
    assert recorded([data[at : at + 777] for at in range(0, len(data), 777)], stop) == expected


@pytest.mark.parametrize("size", [5_000, 16_000, 333_333, 1 << 22])
async def test_of_an_event_that_is_too_long_to_wait_for_what_was_delivered_is_charged(size: int) -> None:
    long, stop = event({"content": "x" * (3 << 20)}), event({"content": "the end"})
    data = ROLE + long + stop + TEXTS[0]
    expected = recorded([ROLE, long, stop], stop)
    assert expected[0] == ROLE + long
    assert recorded([data[at : at + size] for at in range(0, len(data), size)], stop) == expected


async def test_what_is_held_back_of_it_is_not_charged() -> None:
    class StopsAtOnce(Stops):
        def __call__(self, exchange: Exchange, chunk: bytes) -> None:
            if self.event in chunk:
                exchange.stop(STOP)

    held = 12 * len(KEY) - 1
    long = event({"content": "x" * (1 << 20)})[:-2]
    for read in (b"the end", b'the end"}]}\n\n' + TEXTS[0]):
        twin = Twin(max_bytes=1 << 24, hook=StopsAtOnce(b"the end"))
        for each in (
            HEAD,
            chunk(ROLE),
            *(chunk(long[at : at + 15_000]) for at in range(0, len(long), 15_000)),
            chunk(read),
        ):
            twin.read(each)
            twin.turns.run()
        delivered = twin.exchange.bytes - len(ROLE)
        assert 0 < len(long) - delivered <= held
        assert twin.relay.events.output.tokens() == -(-delivered // 4)
        twin.close()
