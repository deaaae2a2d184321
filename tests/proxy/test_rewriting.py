"""A plugin changes the texts of an answer, wherever its events end; all else of the answer passes as it is."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway import Delta, Exchange, Refused
from gateway.chat.events import EventStream, WatchedEvents
from gateway.proxy.chunk_hooks import MAX_HELD, REDACTED, ChunkHooks, DeltaHook, EndReason, Rewriting
from gateway.proxy.relay import Redaction
from gateway.testing import exchange

DONE = b"data: [DONE]\n\n"


def upper(_: Exchange, delta: Delta, last: bool) -> tuple[str, str]:
    """Make words long, and hold the last one back."""
    sent, space, held = ("", "", delta.text) if not last else (delta.text, "", "")
    if not last and " " in delta.text:
        sent, space, held = delta.text.rpartition(" ")
    return sent.upper() + space, held


def event(index: int = 0, finish: str | None = None, **delta: Any) -> bytes:
    choice = {"index": index, "delta": delta, "finish_reason": finish}
    return b"data: %b\n\n" % json.dumps({"id": "c", "choices": [choice]}).encode()


def read(events: bytes) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in events.split(b"\n\n") if line.startswith(b"data: {")]


def text(events: bytes, field: str = "content", index: int = 0) -> str:
    choices = [choice for chunk in read(events) for choice in chunk["choices"] if choice["index"] == index]
    return "".join(choice["delta"].get(field) or "" for choice in choices)


def changed(*events: bytes, hook: DeltaHook = upper) -> list[bytes]:
    rewriting = Rewriting(exchange(), "plugin", hook)
    return [rewriting.events(each) for each in events]


@given(st.text("ab ü\U0001f600", max_size=40), st.data())
def test_the_text_is_the_same_wherever_events_end(words: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(words)), max_size=6)))
    pieces = [words[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(words)], strict=True)]
    sent = changed(*[event(content=piece) for piece in pieces], event(finish="stop"), DONE)
    assert text(b"".join(sent)) == words.upper()


def test_what_is_held_back_is_sent_with_the_event_that_finishes_its_choice() -> None:
    sent = changed(event(content="one tw"), event(content="o"), event(finish="stop"), DONE)
    assert [text(each) for each in sent] == ["ONE ", "", "TWO", ""]
    assert read(sent[2])[0]["choices"][0]["finish_reason"] == "stop" and sent[3] == DONE


def test_what_is_held_back_is_sent_before_anything_else_of_the_choice_and_before_the_end() -> None:
    call = [{"index": 0, "function": {"name": "f", "arguments": "a b"}}]
    thought, said, called, done = changed(
        event(reasoning="thin king"),
        event(content="a b"),
        event(content="", tool_calls=call),
        event(1, content="c") + DONE,
    )
    assert (text(thought, "reasoning"), text(said, "reasoning"), text(said)) == ("THIN ", "KING", "A ")
    assert text(called) == "B" and read(called)[0]["choices"][0]["delta"]["tool_calls"] == call
    assert text(done, index=1) == "C" and done.endswith(DONE)


def test_what_does_not_change_passes_to_the_byte() -> None:
    call = {"index": 0, "function": {"name": "f", "arguments": "a b"}}
    same = [
        event(role="assistant", content=""),
        event(tool_calls=[call]).replace(b": ", b":  "),
        event(content="ABC"),
        b": a comment\r\n\r\n",
        b'data: {"choices":[],"usage":{"prompt_tokens":1}}\n\n',
        b'data: {"error":{"message":"broken","type":"x"}}\n\n',
        b"data: [1]\n\n",
        DONE,
    ]
    assert changed(*same, hook=lambda _, delta, last: (delta.text.upper(), "")) == same
    assert changed(event(content="a b"), hook=lambda *_: None) == [event(content="a b")]


def test_texts_within_fields_are_changed_each_by_itself_and_log_probabilities_left_out() -> None:
    parts = json.loads(event(content=[{"type": "text", "text": "a b"}], details=[{"text": "c", "signature": "d"}])[6:])
    parts["choices"][0]["logprobs"] = {"content": [{"token": "a"}]}
    (sent,) = changed(b"data: %b\n\n" % json.dumps(parts).encode())
    (choice,) = read(sent)[0]["choices"]
    assert choice["delta"] == {
        "content": [{"type": "text", "text": "A B"}],
        "details": [{"text": "C", "signature": "d"}],
    }
    assert choice["logprobs"] is None


def test_a_whole_answer_is_changed_as_a_stream_is() -> None:
    message = {"role": "assistant", "content": "one two", "tool_calls": [{"function": {"arguments": "a"}}]}
    given = {"id": "c", "choices": [{"message": message, "logprobs": {"content": []}}, {"index": 1, "text": "x y"}]}
    of = exchange()
    sent = json.loads(Rewriting(of, "plugin", upper).whole(json.dumps(given).encode()))
    assert sent["choices"][0]["message"] == message | {"content": "ONE TWO"}
    assert sent["choices"][1]["text"] == "X Y" and of.changed_by == ("plugin",)
    assert Rewriting(of, "plugin", upper).whole(b"no JSON") == b"no JSON"


@pytest.mark.parametrize(
    "unreadable", [b"data: {no JSON\n\n", b'data: {"choices":[{"delta":{"content":"piece of a long one']
)
def test_an_event_that_cannot_be_read_ends_the_answer(unreadable: bytes) -> None:
    with pytest.raises(Refused, match="cannot be changed"):
        changed(unreadable)


def hold(_: Exchange, delta: Delta, last: bool) -> tuple[str, str]:
    return "", delta.text


@pytest.mark.parametrize("answer", ["text", ("a", 1), ("a",), 5])
def test_a_wrong_value_is_named(answer: Any) -> None:
    with pytest.raises(TypeError, match="`on_delta` returns"):
        changed(event(content="a"), hook=lambda *_: answer)
    with pytest.raises(ValueError, match="holds back more than"):
        changed(*[event(content="x" * 1000)] * (MAX_HELD // 1000 + 1), hook=hold)


def relayed(*reads: bytes, hooks: Any) -> tuple[list[bytes], WatchedEvents, ChunkHooks, Exchange]:
    of, stream = exchange(), WatchedEvents(drop_usage=False)
    chunk_hooks = ChunkHooks(of, [], [(f"plugin-{number}", hook) for number, hook in enumerate(hooks)])
    return [chunk_hooks.deliverable(stream.feed(each), stream) for each in reads], stream, chunk_hooks, of


def fails(error: Exception) -> DeltaHook:
    def hook(_: Exchange, delta: Delta, last: bool) -> tuple[str, str]:
        if "bad" in delta.text:
            raise error
        return delta.text, ""

    return hook


@pytest.mark.parametrize(
    ("error", "reason"),
    [(Refused(400, "not_here", "Not here."), EndReason.STOPPING), (ZeroDivisionError(), EndReason.PLUGIN)],
)
def test_a_hook_that_raises_ends_the_stream_before_the_event(error: Exception, reason: EndReason) -> None:
    events = [event(content="good "), event(content="bad "), event(finish="stop") + DONE]
    sent, stream, hooks, of = relayed(*events, hooks=[upper, fails(error)])
    assert [text(each) for each in sent] == ["GOOD ", "BAD ", ""]  # in capitals, it is not found
    sent, stream, hooks, of = relayed(*events[:2], hooks=[fails(error), upper])
    assert (text(sent[0]), sent[1], hooks.withheld, hooks.reason) == ("GOOD ", b"", True, reason)
    assert (of.refused_by, stream.events) == ("plugin-0", 1)


def test_what_is_counted_is_what_the_upstream_sent() -> None:
    events = [event(content="many words of a text ") for _ in range(20)] + [event(finish="stop") + DONE]
    _, plain, _, _ = relayed(*events, hooks=[])
    sent, cut, _, of = relayed(*events, hooks=[lambda _, delta, last: ("x", "") if last else ("", delta.text)])
    assert (cut.events, cut.output.tokens()) == (plain.events, plain.output.tokens())
    assert (text(b"".join(sent)), of.changed_by) == ("x", ("plugin-0",))


SECRET = "sk-secret-4711"
QUOTED = '"kept-secret"'
EVENT = b'data: {"id":"%b","choices":[{"delta":{"content":"%b"},"user":"%b"}]}\n\n'


class Relayed:
    """What a caller gets of a stream."""

    def __init__(self, *credentials: str) -> None:
        self.events = EventStream(drop_usage=False, max_event_bytes=300)
        self.redaction = Redaction(credentials, self.events)
        self.text = b""

    def feed(self, data: bytes) -> bytes:
        whole = self.events.feed(data)
        if self.events.template.novel >= self.redaction.shortest:
            whole = self.redaction.redact_whole(whole)
        self.text += whole
        return whole

    def close(self) -> None:
        self.text += self.redaction.redact_rest(self.events.close())


def test_without_credentials_nothing_is_looked_for() -> None:
    relayed = Relayed()
    for _ in range(5):
        assert relayed.feed(EVENT % (b"1", b"text", b"")) == EVENT % (b"1", b"text", b"")
        assert relayed.events.template.novel < relayed.redaction.shortest


@pytest.mark.parametrize("place", range(3))
def test_a_credential_is_replaced_in_every_event(place: int) -> None:
    relayed = Relayed(SECRET)
    values = [b"a", b"b", b"c"]
    for _ in range(5):
        relayed.feed(EVENT % tuple(values))
    values[place] = SECRET.encode()
    for text in (b"b", b"other", b"text"):
        values[1] = text if place != 1 else SECRET.encode()
        replaced = EVENT % tuple(REDACTED if value == SECRET.encode() else value for value in values)
        assert relayed.feed(EVENT % tuple(values)) == replaced


@pytest.mark.parametrize("place", [0, 2])
def test_a_credential_in_what_all_events_have_in_common_is_replaced_in_each(place: int) -> None:
    relayed = Relayed(SECRET)
    for number in range(40):
        values = [b"a", b"word %d" % number, b"c"]
        values[place] = SECRET.encode()
        assert SECRET.encode() not in relayed.feed(EVENT % tuple(values))


def test_a_credential_with_a_quote_is_found_where_it_begins_before_the_text() -> None:
    relayed = Relayed(QUOTED)
    for _ in range(5):
        relayed.feed(EVENT % (b"1", b"text", b""))
    relayed.feed(EVENT % (b"1", b"kept-secret", b""))
    assert QUOTED.encode() not in relayed.text


WORDS = st.sampled_from(
    (b"", b"a", b"word", SECRET.encode(), SECRET.encode()[:9], b"x" + SECRET.encode(), b"kept-secret", b"y" * 250)
)


@settings(max_examples=400, deadline=None)
@given(
    st.lists(
        st.builds(lambda *values: EVENT % values, st.just(b"1") | WORDS, WORDS, st.just(b"") | WORDS), max_size=20
    ),
    st.lists(st.integers(0, 2000), max_size=6),
)
def test_no_credential_is_left_however_reads_split_the_events(events: list[bytes], cuts: list[int]) -> None:
    whole = b"".join(events)
    for pieces in (
        events,
        [whole[start:end] for start, end in zip([0, *sorted(cuts)], [*sorted(cuts), None], strict=True)],
    ):
        relayed = Relayed(SECRET, QUOTED)
        for piece in pieces:
            relayed.feed(piece)
            while relayed.events.backlog:
                relayed.feed(b"")
        relayed.close()
        assert relayed.text == whole.replace(SECRET.encode(), REDACTED).replace(QUOTED.encode(), REDACTED)
