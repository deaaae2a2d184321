"""Single events: their names and data, whether they are plain, what is read of them, and what follows the end."""

from __future__ import annotations

from codecs import BOM_UTF8

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.chat.events import ReplyEvents
from gateway.chat.sse import completion_id, id_text, parse_event, plain_events, read

LINES = st.sampled_from(
    [
        *(b"data: {}", b"data:{}", b"data", b"data: a b \t", b"event: error", b"error: x", b": comment", b""),
        *(b"id: 7", b"\xff", b"dataset: 1"),
    ]
)


def by_lines(event: bytes) -> tuple[bytes, bytes]:
    """Return the name and the data, read line by line."""
    name, data = b"", []
    for line in event.removeprefix(BOM_UTF8).splitlines():
        field, _, value = line.partition(b":")
        if field in (b"data", b"error"):
            data.append(value)
        if field == b"error":
            name = field
        if field == b"event":
            name = value.strip()
    return name, b"\n".join(data).strip()


@settings(max_examples=500, deadline=None)
@given(
    st.sampled_from([b"", BOM_UTF8]),
    st.lists(st.tuples(LINES, st.sampled_from([b"\n", b"\r\n", b"\r", b""])), max_size=5),
    st.sampled_from([b"\n", b"\n\n", b"\r\n\r\n", b""]),
)
@example(b"", [(b"data: x", b"\n"), (b"y", b"")], b"")
@example(b"", [(b"data: x", b"\n"), (b"data: y", b"\n")], b"\n")
def test_the_fields_of_an_event_are_those_of_its_lines(
    bom: bytes, lines: list[tuple[bytes, bytes]], end: bytes
) -> None:
    event = bom + b"".join(line + ending for line, ending in lines) + end
    assert parse_event(event) == by_lines(event)


PLAIN = b'data: {"choices":[{"delta":{"content":"a"},"finish_reason":null}],"usage":null}\n\n'
ODD = [
    *(b'data: {"choices":[{"finish_reason":"stop"}]}\n\n', b'data: {"choices":[{"finish_reason" :null}]}\n\n'),
    *(b'data: {"choices":[],"usage":{}}\n\n', b'data: {"choices":[],"usage":nul'),
    *(b'data: {"choices":[],"usage"\n\n', b'data: {"error":{},"choices":[]}\n\n'),
    *(b'data: {"choices":[],"prompt_filter_results":[]}\n\n', b'data: {"choices":[ {"delta":{}}]}\n\n'),
    *(b'data: {"choices":[],"other":{"choices":[{}]}}\n\n', b'data: {"message":"an error without choices"}\n\n'),
    *(b'data: {"choices":[],"other":{"choices":[]}}\n\n', b'data:{"choices":[]}\n\n'),
    *(b'data: {"choices":[]}\ndata: \n\n', b'event: x\ndata: {"choices":[]}\n\n', b"data: [DONE]\n\n"),
    *(b": comment\n\n", b"\n", b"data: {\n\n", b'"'),
]


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
def test_it_ends_before_the_first_event_that_is_not_plain(odd: bytes, line_end: bytes) -> None:
    plain, odd = PLAIN.replace(b"\n", line_end), odd.replace(b"\n", line_end)
    assert plain_events(odd) == (0, 0)
    assert plain_events(plain + odd) == (len(plain), 1)
    assert plain_events(plain + plain + odd + plain) == (2 * len(plain), 2)


def test_an_event_with_two_lists_of_choices_does_not_hide_one_with_none() -> None:
    error, twice = b'data: {"message":"no money"}\n\n', b'data: {"choices":[],"x":{"choices":[]}}\n\n'
    assert plain_events(error + twice) == plain_events(twice + error) == (0, 0)
    assert plain_events(PLAIN + twice + error) == (len(PLAIN), 1)


def test_half_an_event_and_other_line_ends_are_left() -> None:
    crlf = PLAIN.replace(b"\n", b"\r\n")
    assert plain_events(PLAIN + PLAIN[:-1]) == (len(PLAIN), 1)
    assert plain_events(crlf + crlf[:-1]) == (len(crlf), 1)
    assert plain_events(PLAIN + crlf) == (0, 0)
    assert plain_events(crlf + PLAIN) == (len(crlf), 1)


WORD = b'data: {"choices":[{"index":0,"delta":{"content":"a word"},"finish_reason":null}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":900,"total_tokens":901}}\n\n'
DONE = b"data: [DONE]\n\n"
AFTER = WORD * 40 + USAGE + b'data: {"error":{"message":"late"}}\n\n: comment\n\n' + b"data: " + b"x" * 300


def test_every_cut_of_what_follows_the_end_gives_the_same() -> None:
    data = WORD * 2 + DONE + AFTER
    for cut in range(len(data)):
        stream, relayed = ReplyEvents(drop_usage=False, max_event_bytes=200), b""
        for piece in (data[:cut], data[cut:]):
            relayed += stream.feed(piece)
            while stream.backlog:
                relayed += stream.feed(b"")
        assert relayed + stream.close() == WORD * 2 + DONE
        assert (stream.events, stream.output.all_events, stream.usage.completion, stream.error) == (3, 2, 0, None)
        assert stream.complete and stream.concluded


ROLE = b'"choices":[{"index":0,"delta":{"role":"assistant"},"finish_reason":null}]'
CALL = b'"choices":[{"delta":{"tool_calls":[{"id":"call_1"}]}}]'


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        (b'data: {"id":"chatcmpl-1",' + ROLE + b"}\n\n", "chatcmpl-1"),
        (b'data:{"id":"chatcmpl-1",' + ROLE + b"}\n\n", "chatcmpl-1"),
        (b'data: {"object":"x", "id": "gen-1-Ab", ' + ROLE + b"}\n\n", "gen-1-Ab"),
        (b"data: {" + CALL + b',"id":"chatcmpl-2"}\n\n', "chatcmpl-2"),
        (b": OPENROUTER PROCESSING\n\n" + b'data: {"id":"gen-2",' + ROLE + b"}\n\n", "gen-2"),
        (b'data: {"id":"a",' + ROLE + b'}\n\ndata: {"id":"b",' + ROLE + b"}\n\n", "a"),
        (b'event: x\r\ndata: {"id":"crlf",' + ROLE + b"}\r\n\r\n", "crlf"),
        (b"data: {" + CALL + b"}\n\n", ""),
        (b'data: {"id":"",' + ROLE + b"}\n\n", ""),
        (b'data: {"id":7,' + ROLE + b"}\n\n", ""),
        (b'data: {"id":null,' + ROLE + b"}\n\n", ""),
        (b'data: {"id":"' + b"x" * 129 + b'",' + ROLE + b"}\n\n", ""),
        (b'data: {"id":"a b",' + ROLE + b"}\n\n", ""),
        (b'data: {"id":"\\u0000",' + ROLE + b"}\n\n", ""),
        ('data: {"id":"ü",'.encode() + ROLE + b"}\n\n", ""),
        *((b"data: [DONE]\n\n", ""), (b"data: {\n\n", ""), (b": nothing\n\n", ""), (b"", "")),
    ],
)
def test_the_id_of_a_completion_is_read_from_its_first_event(events: bytes, expected: str) -> None:
    assert completion_id(events) == expected


@pytest.mark.parametrize(
    ("data", "empty", "only_usage"),
    [
        (b'{"choices":[],"created":0,"id":"","model":"","object":"","prompt_filter_results":[]}', True, False),
        *((b'{"id":"c","choices":[]}', True, False), (b'{"choices": [ ]}', True, False)),
        *((b'{"choices":null}', True, False), (b'{"id":"c"}', True, False)),
        *((b'{"choices":[],"usage":null}', True, False), (b'{"choices":[],"usage":{}}', True, True)),
        (b'{"choices":[],"x_groq":{"usage":{"prompt_tokens":1,"completion_tokens":1}}}', True, True),
        (b'{"choices":[],"usage":{"prompt_tokens":1}}', True, True),
        (b'{"delta":{},"usage":{"prompt_tokens":1}}', False, False),
        (b'{"choices":[{}],"usage":{"prompt_tokens":1}}', False, False),
        *((b'{"choices":[null]}', False, False), (b'{"choices":{}}', False, False), (b"[]", False, False)),
        (b"nonsense", False, False),
        (b"{" + ROLE + b"}", False, False),
        (b'{"choices": [{"delta":{"content":"a"}}]}', False, False),
    ],
)
def test_a_chunk_without_a_choice_is_empty(data: bytes, empty: bool, only_usage: bool) -> None:
    chunk = read(b"", data)
    assert (chunk.empty, chunk.only_usage) == (empty, only_usage)


def test_an_event_that_is_parsed_has_its_id_in_json() -> None:
    chunk = read(b"", b'{"id":"c-1","choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1}}')
    assert id_text(chunk.id) == "c-1"
    assert id_text(read(b"", b'{"choices":[{"finish_reason":"stop"}]}').id) == ""
