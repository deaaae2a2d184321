"""What is read from an event stream does not depend on where its data was cut."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.chat.events import MAX_PARSED, EventStream, WatchedEvents
from gateway.chat.usage import Usage

MAX_EVENT_BYTES = 600
"""A limit that some generated events exceed."""
COUNTED = {"prompt_tokens": 7, "completion_tokens": 11, "total_tokens": 18}
REPORTED = Usage(7, 11, "upstream")


def chunk(delta: dict[str, Any] | None = None, finish: str | None = None, **fields: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta or {}, "finish_reason": finish}
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": [choice], **fields}


def text(content: str, **fields: Any) -> dict[str, Any]:
    return chunk({"content": content}, **fields)


def event(data: dict[str, Any] | str, name: str = "") -> bytes:
    line = data if isinstance(data, str) else json.dumps(data, separators=(",", ":"), ensure_ascii=False)
    return f"{f'event: {name}' + chr(10) if name else ''}data: {line}\n\n".encode()


DONE = event("[DONE]")
USAGE_ONLY = event({"id": "chatcmpl-1", "choices": [], "usage": COUNTED})


def reported(stream: EventStream) -> Usage | None:
    """Return the counts that were read, final or not."""
    counts = stream.usage
    return Usage(counts.prompt, counts.completion, "upstream") if counts.prompt or counts.completion else None


def facts(stream: EventStream) -> tuple[object, ...]:
    return (
        stream.started,
        stream.events,
        stream.usage,
        stream.finished,
        stream.done,
        stream.error,
        stream.first_error,
        stream.error_relayed,
        stream.concluded or stream.complete,
        stream.complete,
        stream.at_boundary,
        stream.output.tokens(),
    )


def feed_cut(
    body: bytes,
    *cuts: int,
    drop_usage: bool = False,
    drop_empty: bool = False,
    choices: int = 1,
    max_event_bytes: int = 1 << 20,
) -> tuple[EventStream, list[bytes]]:
    stream = EventStream(drop_usage=drop_usage, drop_empty=drop_empty, choices=choices, max_event_bytes=max_event_bytes)
    ends = [*sorted(cuts), len(body)]
    relayed = [stream.feed(body[start:end]) for start, end in zip([0, *ends], ends, strict=False)]
    return stream, [*relayed, stream.close()]


def read(*events: bytes, drop_usage: bool = False, choices: int = 1) -> EventStream:
    stream, relayed = feed_cut(b"".join(events), drop_usage=drop_usage, choices=choices)
    if not drop_usage:
        assert b"".join(relayed) == b"".join(events)
    return stream


# Any stream, cut anywhere


@dataclass(frozen=True)
class Part:
    """A generated event and what must be read from it."""

    raw: bytes
    kind: str
    data: bytes = b""
    usage: Usage | None = None
    raises: bool = False


BOUNDARIES = ["\n\n", "\r\n\r\n", "\r\r", "\n\r\n", "\r\n\n", "\n\r", "\r\r\n"]
contents = st.text(st.characters(codec="utf-8"), max_size=12) | st.sampled_from(
    ['"usage"', '"error":{}', "[DONE]", "data: {\n\n", "\r\n\r\n", '"finish_reason":"stop"', "\\", "é" * 20]
)
contents_of_comments = st.sampled_from(["", "ping", '{"usage":1}', "data: {}"])
separators = st.sampled_from([(",", ":"), (", ", ": "), (" , ", " : ")])


EMPTY: list[dict[str, Any]] = [
    {"choices": [], "prompt_filter_results": [{"prompt_index": 0}]},
    *({"id": "chatcmpl-1", "choices": [], "usage": None}, {"choices": None}, {"type": "ping"}),
]


@st.composite
def parts(draw: st.DrawFn) -> Part:
    kind = draw(
        st.sampled_from(
            [
                *("text", "text", "text", "comment", "usage", "empty", "finish"),
                *("error", "bare", "named", "done", "lines", "huge"),
            ]
        )
    )
    boundary = draw(st.sampled_from(BOUNDARIES))
    line_end = "\r\n" if boundary.startswith("\r\n") else boundary[0]
    colon = draw(st.sampled_from(["data:", "data: "]))
    usage = Usage(draw(st.integers(0, 9)), draw(st.integers(0, 9)), "upstream")
    counted = {"prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.completion_tokens}
    beside: list[dict[str, Any]] = [{}, {"usage": counted}, {"x_groq": {"usage": counted}}]
    nothing: list[dict[str, Any]] = [{}, {"usage": None}, {"error": None}]
    body: dict[str, Any] = {
        "usage": {"choices": [], "usage": counted},
        "empty": draw(st.sampled_from(EMPTY)),
        "finish": chunk(finish="stop", **draw(st.sampled_from(beside))),
        "error": {"error": {"message": draw(contents)}, "choices": []},
        "bare": {"object": "error", "message": draw(contents), "code": 400},
        "named": {"message": draw(contents)},
        "huge": text("x" * (MAX_EVENT_BYTES + draw(st.integers(0, 200)))),
    }.get(kind, text(draw(contents), **draw(st.sampled_from(nothing))))
    raw = json.dumps(body, separators=draw(separators), ensure_ascii=draw(st.booleans()))
    if kind == "comment":
        return Part(f": {draw(contents_of_comments)}{boundary}".encode(), kind)
    if kind == "done":
        return Part(f"{colon}[DONE]{boundary}".encode(), kind)
    if kind == "lines":
        raw = json.dumps(body, indent=1)
    lines = [*(["event: error"] if kind == "named" else []), *(colon + line for line in raw.split("\n"))]
    reported = usage if b'"usage"' in raw.encode() and kind in ("usage", "finish") else None
    raises = kind == "error" and bool(body["error"]["message"])
    return Part((line_end.join(lines) + boundary).encode(), kind, raw.encode(), reported, raises)


def test_events_with_changing_line_ends_within_one_read_are_relayed_at_once() -> None:
    one = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}'
    stream = EventStream(drop_usage=True)
    mixed = one + b"\n\n" + 2 * (one + b"\r\n\r\n") + one + b"\n\n"
    assert stream.feed(mixed) == mixed
    assert stream.events == 4


ERRORS = ("error", "bare", "named")


def kept_of(stream_parts: list[Part], dropped: set[str]) -> list[Part]:
    """Return the parts that are relayed: up to the first error, and that one if clients raise on it."""
    kept: list[Part] = []
    for part in stream_parts:
        if part.kind in ERRORS:
            return [*kept, part] if part.raises else kept
        if part.kind not in dropped:
            kept.append(part)
    return kept


@settings(max_examples=200, deadline=None)
@given(
    st.lists(parts(), max_size=12),
    st.sets(st.sampled_from(["usage", "empty"])),
    st.lists(st.integers(0, 10_000), max_size=40),
    st.booleans(),
)
def test_any_stream_cut_anywhere_is_relayed_whole_and_read_the_same(
    stream_parts: list[Part], dropped: set[str], cuts: list[int], every_byte: bool
) -> None:
    body = b"".join(part.raw for part in stream_parts)
    kept = kept_of(stream_parts, dropped)
    drop_usage, drop_empty = "usage" in dropped, "empty" in dropped
    expected = b"".join(part.raw for part in kept)
    where = range(len(body)) if every_byte and len(body) < 3000 else [cut % (len(body) + 1) for cut in cuts]
    stream = EventStream(drop_usage=drop_usage, drop_empty=drop_empty, max_event_bytes=MAX_EVENT_BYTES)
    boundaries = {0} | {len(b"".join(part.raw for part in kept[:count])) for count in range(1, len(kept) + 1)}
    relayed, ends = b"", [*sorted(where), len(body)]
    for start, end in zip([0, *ends], ends, strict=False):
        relayed += stream.feed(body[start:end])
        while stream.backlog:
            relayed += stream.feed(b"")
        assert not stream.at_boundary or len(relayed) in boundaries
    relayed += stream.close()
    assert relayed == expected

    uncut, _ = feed_cut(body, drop_usage=drop_usage, drop_empty=drop_empty, max_event_bytes=MAX_EVENT_BYTES)
    assert facts(stream) == facts(uncut)

    with_data = [part for part in stream_parts if part.kind != "comment"]
    errors = [part for part in with_data if part.kind in ERRORS]
    assert stream.events == len([part for part in kept if part.kind != "comment"])
    started_by = [part for part in with_data if part.kind not in dropped]
    assert stream.started is bool(started_by)
    assert stream.done is any(part.kind == "done" for part in with_data)
    assert stream.finished is any(part.kind == "finish" for part in with_data)
    usages = [part.usage for part in reversed(with_data) if part.usage]
    assert stream.usage.prompt == next((usage.prompt_tokens for usage in usages if usage.prompt_tokens), 0)
    assert stream.usage.completion == next((usage.completion_tokens for usage in usages if usage.completion_tokens), 0)
    assert (stream.error is not None) is bool(errors)
    assert stream.first_error is bool(started_by and started_by[0].kind in ERRORS)
    if errors and stream.error is not None:
        assert json.loads(stream.error) == json.loads(errors[0].data)


ANSWER = b"".join(
    [
        b": waiting\n\n",
        event(chunk({"role": "assistant", "content": ""}, usage=None)),
        event(text("Grüße, 世界", usage=None)),
        event(chunk({"tool_calls": [{"index": 0, "function": {"arguments": '{"a":"}\\n\\n'}}]}, usage=None)),
        event(chunk(finish="tool_calls", usage=None)),
        USAGE_ONLY,
        DONE,
    ]
)


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("drop_usage", [False, True])
def test_every_single_and_double_cut_of_an_answer_changes_nothing(line_end: bytes, drop_usage: bool) -> None:
    body = ANSWER.replace(b"\n", line_end)
    expected = body.replace(
        USAGE_ONLY.replace(b"\n", line_end), b"" if drop_usage else USAGE_ONLY.replace(b"\n", line_end)
    )
    uncut, relayed = feed_cut(body, drop_usage=drop_usage)
    assert b"".join(relayed) == expected
    assert uncut.complete and reported(uncut) == REPORTED
    for cut in range(len(body) + 1):
        for second in (cut, cut + 2):
            stream, relayed = feed_cut(body, cut, min(second, len(body)), drop_usage=drop_usage)
            assert b"".join(relayed) == expected
            assert facts(stream) == facts(uncut)


# What passes, and when


def test_a_complete_event_with_only_text_is_relayed_as_the_same_object() -> None:
    stream = EventStream(drop_usage=True)
    for data in (event(text("a", usage=None, error=None)), event(text("a")) + event(text("b")), event(text("usage"))):
        assert stream.feed(data) is data
    assert stream.events == 4


def test_an_event_is_relayed_with_its_last_byte_and_without_the_start_of_the_next() -> None:
    stream = EventStream(drop_usage=False)
    first, second = event(text("a")), event(text("b"))
    assert stream.feed(first[:-1]) == b""
    assert stream.feed(first[-1:] + second[:9]) == first
    assert stream.feed(second[9:]) == second


def test_half_of_a_line_end_is_not_an_event_boundary() -> None:
    stream = EventStream(drop_usage=False)
    data = event(text("a")).replace(b"\n", b"\r\n")
    assert stream.feed(data[:-1]) == b""
    assert stream.feed(data[-1:]) == data


def test_an_unfinished_event_is_never_relayed() -> None:
    stream, relayed = feed_cut(event(text("a")) + event(text("b"))[:-1])
    assert b"".join(relayed) == event(text("a"))
    assert stream.events == 1


def test_an_event_above_the_limit_is_relayed_in_pieces_up_to_its_boundary() -> None:
    stream = EventStream(drop_usage=False, max_event_bytes=100)
    long = event(text("x" * 300))
    assert stream.feed(long[:200]) == long[:200]
    assert not stream.at_boundary
    assert stream.feed(long[200:-1]) == long[200:-2], "a line end may be half of the boundary"
    assert stream.feed(long[-1:] + DONE) == long[-2:] + DONE
    assert stream.at_boundary and stream.done and stream.events == 2


def test_a_megabyte_in_small_pieces_costs_time_in_proportion() -> None:
    stream = EventStream(drop_usage=False)
    long = event(text("x" * 500_000))
    relayed = [stream.feed(long[at : at + 5]) for at in range(0, len(long), 5)]
    assert b"".join(relayed) == long


def test_comments_are_relayed_at_once_and_are_not_a_first_event() -> None:
    stream = EventStream(drop_usage=False)
    assert stream.feed(b"\xef\xbb\xbf: waiting\n\n: waiting\n\nretry: 5\n\n") != b""
    assert not stream.started and stream.events == 0
    stream.feed(event(text("a")))
    assert stream.started and stream.events == 1


@pytest.mark.parametrize("blank", [b"\n\n", b"\r\n\r\n", b"\n\n\n"])
def test_blank_lines_alone_are_not_a_first_event(blank: bytes) -> None:
    stream = EventStream(drop_usage=False)
    assert stream.feed(blank)
    assert not stream.started and stream.events == 0


def test_a_byte_order_mark_does_not_hide_the_first_event() -> None:
    assert read(b"\xef\xbb\xbf" + event({"error": {"message": "no"}})).first_error


# What one call takes

PARSED = [
    *(b'data: {"usage":{}}\n\n', b"data: {}\n\n", b"event: ping\n\n", b"\r\r"),
    event(text("a")).replace(b"\n", b"\r"),
]
RUNS = [b":\n\n", b": ping\r\n\r\n", b"\n\n", b"\r\n\r\n", event(text("a")), event(text("a")).replace(b"\n", b"\r\n")]


@pytest.mark.parametrize("unit", PARSED)
def test_events_that_are_taken_one_by_one_are_left_for_further_calls(unit: bytes) -> None:
    stream = EventStream(drop_usage=False)
    body = event(text("a")) + unit * 500
    relayed = [stream.feed(body + b"da")]
    while stream.backlog:
        relayed.append(stream.feed(b""))
    assert b"".join(relayed) == body
    assert max(map(len, relayed)) <= len(event(text("a"))) + MAX_PARSED * len(unit)
    assert stream.feed(b"ta: [DONE]\n\n") == b"data: [DONE]\n\n"
    assert stream.done


@pytest.mark.parametrize("unit", RUNS)
def test_runs_of_similar_events_are_taken_together(unit: bytes) -> None:
    stream = EventStream(drop_usage=False)
    relayed = [stream.feed(unit * 3000)]
    while stream.backlog:
        relayed.append(stream.feed(b""))
    assert b"".join(relayed) == unit * 3000
    assert len(relayed) <= 3
    assert stream.events == (3000 if b"data" in unit else 0)


@pytest.mark.parametrize("unit", [*PARSED, *RUNS])
def test_new_data_and_the_end_come_after_what_was_left(unit: bytes) -> None:
    body = event(text("a")) + unit * 2000 + event(chunk(finish="stop")) + DONE
    cuts, drained = range(1, len(body), 700), read(body)
    stream, relayed = feed_cut(body, *cuts)
    assert b"".join(relayed) == body
    assert facts(stream) == facts(drained)


# What a stream tells


def test_the_last_usage_counts_and_null_does_not_reset_it() -> None:
    first, last = {"prompt_tokens": 7, "completion_tokens": 1}, COUNTED
    stream = read(event(text("a", usage=first)), event(text("b", usage=last)), event(text("c", usage=None)))
    assert reported(stream) == REPORTED


@pytest.mark.parametrize("choices", [{"choices": []}, {"choices": None}, {}])
def test_only_the_usage_chunk_that_the_gateway_requested_is_dropped(choices: dict[str, Any]) -> None:
    kept = [
        event({**choices, "prompt_filter_results": []}),
        event({**choices, "usage": None}),
        event({**choices, "type": "message_delta", "delta": {"text": "a"}, "usage": COUNTED}),
        event(text("a", usage=COUNTED)),
    ]
    dropped = event({"id": "chatcmpl-1", **choices, "usage": COUNTED})
    stream, relayed = feed_cut(b"".join([*kept, dropped, DONE]), drop_usage=True)
    assert b"".join(relayed) == b"".join([*kept, DONE])
    assert reported(stream) == REPORTED and stream.events == 5
    assert b"".join(feed_cut(dropped)[1]) == dropped


def test_an_error_with_usage_is_relayed_and_its_usage_is_read() -> None:
    failing = event({"choices": [], "usage": COUNTED, "error": {"message": "no"}})
    stream, relayed = feed_cut(event(text("a")) + failing + DONE, drop_usage=True)
    assert b"".join(relayed) == event(text("a")) + failing
    assert reported(stream) == REPORTED and stream.error_relayed


def test_field_names_in_the_text_are_ignored() -> None:
    words = [
        '"error":{"message":"no"}',
        '"usage":{"prompt_tokens":1}',
        '"finish_reason":"stop"',
        "[DONE]",
        "error",
        "usage",
    ]
    stream = read(*(event(text(word)) for word in words), event({"choices": [], "note": "usage"}))
    assert stream.error is None and reported(stream) is None
    assert not stream.finished and not stream.done


def test_an_event_that_is_not_json_is_relayed_and_not_read() -> None:
    stream = read(event('{"usage":{"prompt_tokens":1,'), event('"usage"'), event("[" * 5000 + '"error"'))
    assert stream.events == 3 and reported(stream) is None and stream.error is None


@pytest.mark.parametrize("finish", [None, ""])
def test_neither_null_nor_an_empty_string_is_a_finish(finish: str | None) -> None:
    assert not read(event(chunk(finish=finish))).finished


# Whether it is complete


@pytest.mark.parametrize(
    ("body", "complete"),
    [
        (event(chunk(finish="stop")) + DONE, True),
        (event(text("a")) + DONE, True),
        (event(text("a")) + b"data: [DONE]", True),
        (event(chunk(finish="stop")), True),
        (event(chunk(finish="stop")) + b": bye\n\n", True),
        (event(chunk(finish="stop")) + b": bye", True),
        (event(chunk(finish="stop")) + b"\n\n\n", True),
        (event(chunk(finish="stop")) + b"da", False),
        (event(chunk(finish="stop")) + USAGE_ONLY[:-1], False),
        (event(text("a")), False),
        (b"", False),
    ],
)
def test_complete_is_done_or_finished_with_an_end_that_cuts_no_event(body: bytes, complete: bool) -> None:
    assert feed_cut(body)[0].complete is complete


def of_choice(index: int, finish: str | None = None, **fields: Any) -> bytes:
    delta = {"content": "a", "tool_calls": [{"index": 7}]}
    return event({"choices": [{"index": index, "delta": delta, "finish_reason": finish}], **fields})


@pytest.mark.parametrize(
    ("body", "complete"),
    [
        (of_choice(0) + of_choice(1) + of_choice(0, "stop"), False),
        (of_choice(0) + of_choice(1) + of_choice(0, "stop") + of_choice(1, "length"), True),
        (of_choice(0, "stop") + of_choice(1), False),
        (of_choice(0, "stop") + of_choice(1, usage=COUNTED), False),
        (of_choice(0) + of_choice(1) + of_choice(0, "stop") + DONE, True),
        (of_choice(0) + of_choice(0, "stop"), True),
        (of_choice(0, "stop") + USAGE_ONLY, True),
        (of_choice(0) + of_choice(1), False),
        (event({"choices": [{"delta": {"content": "a"}}]}) + event({"choices": [{"finish_reason": "stop"}]}), True),
    ],
)
def test_an_answer_with_several_choices_is_complete_when_each_that_appeared_is_finished(
    body: bytes, complete: bool
) -> None:
    for end in (body, body.replace(b"\n", b"\r\n"), body.replace(b'":', b'": ')):
        for cut in range(len(end)):
            stream = EventStream(drop_usage=False, choices=3)
            relayed = stream.feed(end[:cut]) + stream.feed(end[cut:])
            assert (relayed + stream.close(), stream.complete) == (end, complete)


def test_a_finish_alone_is_not_complete_before_the_end() -> None:
    stream = EventStream(drop_usage=False)
    stream.feed(event(chunk(finish="stop")))
    assert not stream.complete
    stream.close()
    assert stream.complete


# As providers send it: their order and fields, with text of our own


def test_groq_reports_usage_in_its_own_field_and_names_its_error_events() -> None:
    first = event(chunk({"role": "assistant", "content": ""}, x_groq={"id": "req_1"}))
    stream = read(first, event(text("Hi")), event(chunk(finish="stop", x_groq={"id": "req_1", "usage": COUNTED})), DONE)
    assert reported(stream) == REPORTED and stream.complete
    failed = read(first, event({"error": {"message": "tool call validation failed", "status_code": 400}}, "error"))
    assert failed.error_relayed and not failed.first_error and not failed.complete


def test_openrouter_comments_first_then_may_fail_beside_choices_with_a_number_as_code() -> None:
    failing = chunk({"content": ""}, error={"code": 400, "message": "limit reached"}, usage=COUNTED)
    whole = [*[b": PROCESSING\n\n"] * 3, event(text("a")), event(chunk(finish="length"))]
    stream, relayed = feed_cut(b"".join([*whole, event(failing), DONE]))
    assert b"".join(relayed) == b"".join(whole)
    assert stream.error is not None and not stream.error_relayed and not stream.first_error
    assert reported(stream) == REPORTED and stream.events == 2


def test_snowflake_never_finishes_and_zai_leaves_the_finish_out_until_it_has_one() -> None:
    unfinished = {"choices": [{"delta": {"content": "4"}, "index": 0, "logprobs": {"content": None}}]}
    snowflake = read(event(unfinished), USAGE_ONLY, DONE)
    assert snowflake.complete and not snowflake.finished
    zai = read(event(unfinished), event(chunk({"content": ""}, finish="stop", usage=COUNTED)))
    assert zai.complete and reported(zai) == REPORTED and not zai.done


def test_a_dropped_chunk_is_no_output() -> None:
    assert re.search(rb'"choices":\[\]', USAGE_ONLY)
    assert read(USAGE_ONLY, drop_usage=True).output.tokens() == 0


# Events that are passed on in pieces

PICTURE = "data:image/png;base64," + "A/+z" * 1000
LONG = {"choices": [{"index": 0, "delta": {"images": [{"image_url": {"url": PICTURE}}]}, "finish_reason": "stop"}]}


@pytest.mark.parametrize("event_end", [b"\n\n", b"\r\n\r\n", b"\r\r"])
@pytest.mark.parametrize("choices", [1, 2])
def test_usage_finish_and_id_of_an_event_in_pieces_are_read(choices: int, event_end: bytes) -> None:
    told = {"usage": {"prompt_tokens": 3, "completion_tokens": 1290}, "id": "chatcmpl-7", "service_tier": "flex"}
    both = LONG if choices == 1 else {"choices": [*LONG["choices"], {"index": 1, "delta": {}, "finish_reason": "stop"}]}
    raw = b"data: " + json.dumps({**both, **told}, indent=None).encode() + event_end + b": rest\n"
    for at in range(0, len(raw), 11):
        stream = EventStream(drop_usage=True, choices=choices, max_event_bytes=MAX_EVENT_BYTES)
        relayed = stream.feed(raw[:at]) + stream.feed(raw[at:])
        assert relayed == raw.removesuffix(b": rest\n")
        assert stream.usage.final and stream.concluded and stream.all_finished
        assert (stream.usage.prompt, stream.usage.completion, stream.usage.service_tier) == (3, 1290, "flex")
        assert (stream.completion_id, stream.events) == ("chatcmpl-7", 1)


def test_fields_inside_of_other_fields_and_of_texts_of_an_event_in_pieces_say_nothing() -> None:
    lies = {"usage": {"prompt_tokens": 1, "completion_tokens": 1}, "finish_reason": "stop"}
    inner = {"content": PICTURE + json.dumps(lies), "metadata": {**lies, "choices": [lies]}}
    raw = b"data: " + json.dumps({"echo": lies, "choices": [{"index": 0, "delta": inner}]}).encode() + b"\n\n"
    for at in range(0, len(raw), 11):
        stream = EventStream(drop_usage=True, max_event_bytes=MAX_EVENT_BYTES)
        stream.feed(raw[:at])
        stream.feed(raw[at:])
        assert not (stream.finished or stream.concluded or stream.usage.prompt or stream.usage.completion)


def test_a_watched_event_in_pieces_that_is_withdrawn_is_counted_as_if_it_had_ended_there() -> None:
    raw = b"data: " + json.dumps(LONG).encode() + b"\n\n"
    stream = WatchedEvents(drop_usage=True, max_event_bytes=MAX_EVENT_BYTES)
    for at in range(0, 3000, 1000):
        stream.feed(raw[at : at + 1000])
        stream.deliver(0)
    counted = stream.output.tokens()
    assert counted > 0
    stream.feed(raw[3000:])
    assert stream.finished
    stream.withdraw(0)
    assert (stream.output.tokens(), stream.finished) == (counted, False)
