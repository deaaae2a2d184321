"""Where an answer is cut changes nothing for the caller. What comes after its end is neither passed on nor counted, as it would be
charged.

Those that the clients' packages have recorded are cut at each byte, too, as they are parsed: `CORPORA=1` fetches them, see
tests/operations/test_recorded_streams.py.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from gateway.chat.dialect import Dialect
from gateway.chat.events import EventStream
from gateway.chat.request import BodyRules, checked
from gateway.config.channel import Channel
from gateway.operations.form import FORM, written
from gateway.operations.operation import SERVED, Operation
from gateway.proxy.chunk_hooks import EndReason
from plugins.anthropic import Messages
from plugins.examples.ollama_chat import Ollama
from tests.chat.test_events import ANSWER
from tests.fuzz.plans import comparable_answer
from tests.fuzz.twins import Twin
from tests.operations.test_documented_answers import STREAMS, stream_of
from tests.operations.test_message_events import WHOLE as MESSAGE
from tests.operations.test_response_events import WHOLE as RESPONSE
from tests.plugins.anthropic_streams import STREAMS as MESSAGES
from tests.plugins.anthropic_streams import wire
from tests.plugins.examples.test_answers import END, THOUGHT, lines
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


def relayed(
    reads: Sequence[bytes], events: EventStream | None = None, dialect: Dialect | None = None
) -> tuple[tuple[bytes, bytes], object, object]:
    """Return what the caller got, how the relay ended, and what was counted."""
    twin = Twin(max_bytes=1 << 20, events=events, dialect=dialect)
    if twin.relay.translation is not None:
        twin.relay.translation._created = 1
    twin.read(HEAD.replace(b"text/event-stream", dialect.streams[0].encode()) if dialect else HEAD)
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


BODIES = [(operation, stream_of(shape, "LF")) for operation, shape, _ in STREAMS] + [(Operation.RESPONSES, RESPONSE)]
BODIES += [(Operation.MESSAGES, data) for data in (MESSAGE, wire(MESSAGES["tools"]), wire(MESSAGES["thinking"]))]


@pytest.mark.parametrize("operation", dict(BODIES))
async def test_a_stream_of_each_operation_may_be_cut_at_every_byte_of_its_chunks(operation: Operation) -> None:
    wire_format = SERVED[operation]
    sample = wire_format.sample("m", "max_tokens")
    if operation is Operation.COMPLETIONS:
        sample["stream_options"] = {"include_usage": True}
    raw = written(sample) if wire_format.accepts == FORM else json.dumps(sample).encode()
    request = checked(wire_format.check(raw, BodyRules()))

    def parser() -> EventStream:
        return wire_format.events(request, Channel("http://h/v1"), gathered=False, watched=False)

    for body in (body for each, body in BODIES if each is operation):
        if operation is Operation.IMAGES and b"[DONE]" in body:
            continue  # it is at its end before: `[DONE]` is passed on where it comes with that
        data = chunk(body) + b"0\r\n\r\n"
        whole = relayed([data], parser())
        assert whole[0][1] == body
        for at in range(1, len(data)):
            assert relayed([data[:at], data[at:]], parser()) == whole, at


@pytest.mark.parametrize("name", [*MESSAGES, "lines"])
async def test_a_stream_of_another_dialect_may_be_cut_at_every_byte_of_its_chunks(name: str) -> None:
    dialect: Dialect = Ollama() if name == "lines" else Messages()
    body = lines(*THOUGHT, END) if name == "lines" else wire(MESSAGES[name])
    data = chunk(body) + b"0\r\n\r\n"
    whole = relayed([data], dialect=dialect)
    assert whole[0][1].endswith(b"data: [DONE]\n\n")
    for at in range(1, len(data)):
        assert relayed([data[:at], data[at:]], dialect=dialect) == whole, at
    data = chunk(body.replace(b"\n", b"\r\n")) + b"0\r\n\r\n"
    assert (
        relayed([data], dialect=dialect)
        == relayed([data[at : at + 1] for at in range(len(data))], dialect=dialect)
        == whole
    )
