"""Where an answer is cut changes nothing for the caller. What comes after its end is neither passed on nor counted, as it would be
charged.

Those that the clients' packages have recorded are cut at each byte, too, as they are parsed: `CORPORA=1` fetches them, see
tests/operations/test_recorded_streams.py.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from gateway.chat.events import EventStream
from gateway.chat.request import BodyRules, checked
from gateway.config.channel import Channel
from gateway.operations.form import FORM, written
from gateway.operations.operation import SERVED, Operation
from gateway.proxy.chunk_hooks import EndReason
from tests.chat.test_events import ANSWER
from tests.fuzz.plans import comparable_answer
from tests.fuzz.twins import Twin
from tests.operations.test_documented_answers import DONE, STREAMS, stream_of
from tests.proxy.test_chunks import HEAD, PLAIN, chunk
from tests.whole.test_stream import AZURE, STREAM

FINISHING = PLAIN.replace(b"null", b'"stop"')
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":1000,"completion_tokens":1000}}\n\n'


@pytest.mark.parametrize("later", [PLAIN, 3 * PLAIN, PLAIN[:20], FINISHING + USAGE, b": a comment\n\n"])
async def test_nothing_is_counted_after_the_end(later: bytes) -> None:
    twin = Twin(max_bytes=1 << 20)
    for data in (HEAD, chunk(PLAIN), chunk(PLAIN)):
        twin.read(data)
    events, written = twin.relay.events, len(twin.to_caller.calls)
    tokens = events.output.tokens()
    assert tokens == events.events == 2
    twin.relay.end(EndReason.STOPPING)
    twin.read(chunk(later))
    assert events.output.tokens() == tokens
    assert (events.events, events.finished, events.usage.completion) == (2, False, 0)
    assert len(twin.to_caller.calls) == written
    twin.close()


CHATS = {
    "words": STREAM,
    "no choices": AZURE + STREAM,
    "tools": ANSWER,
    "an error": STREAM[:400] + b'data: {"error":{"message":"no"}}\n\n',
    "no end": STREAM[:700],
}


def relayed(reads: Sequence[bytes], events: EventStream | None = None) -> tuple[tuple[bytes, bytes], object, object]:
    """Return what the caller got, how the relay ended, and what was counted."""
    twin = Twin(max_bytes=1 << 20, events=events)
    twin.read(HEAD)
    for data in reads:
        if data and twin.reading:
            twin.read(data)
        twin.turns.run()
    sent = b"".join(call for call in twin.to_caller.calls if isinstance(call, bytes))
    counted = twin.relay.events
    seen = (
        comparable_answer(sent),
        twin.relay.ended.done() and twin.relay.ended.result(),
        (counted.events, counted.complete, counted.error, counted.usage.usage(lambda: 1, counted.output.tokens)),
    )
    twin.close()
    return seen


@pytest.mark.parametrize("name", CHATS)
async def test_a_chat_may_be_cut_at_every_byte_of_its_chunks(name: str) -> None:
    for body in (CHATS[name], CHATS[name].replace(b"\n", b"\r\n")):
        data = chunk(body) + b"0\r\n\r\n"
        whole = relayed([data])
        assert whole[0][1]
        for at in range(1, len(data)):
            assert relayed([data[:at], data[at:]]) == whole, at
        assert relayed([data[at : at + 1] for at in range(len(data))]) == whole


async def test_a_stream_of_each_operation_may_be_cut_at_every_byte_of_its_chunks() -> None:
    for operation, shape, _ in STREAMS:
        if operation is Operation.IMAGES and DONE in shape:
            continue  # it is at its end before: `[DONE]` is passed on where it comes with that
        wire, body = SERVED[operation], stream_of(shape, "LF")
        sample = wire.sample("m", "max_tokens")
        if operation is Operation.COMPLETIONS:
            sample["stream_options"] = {"include_usage": True}
        raw = written(sample) if wire.accepts == FORM else json.dumps(sample).encode()
        request = checked(wire.check(raw, BodyRules()))

        def parser() -> EventStream:
            return wire.events(request, Channel("http://h/v1"), gathered=False, watched=False)  # noqa: B023

        data = chunk(body) + b"0\r\n\r\n"
        whole = relayed([data], parser())
        assert whole[0][1] == body
        for at in range(1, len(data)):
            assert relayed([data[:at], data[at:]], parser()) == whole, (operation, at)
