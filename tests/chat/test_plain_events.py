"""Which events are plain."""

from __future__ import annotations

import pytest

from gateway.chat.sse import plain_events

PLAIN = b'data: {"choices":[{"delta":{"content":"a"},"finish_reason":null}],"usage":null}\n\n'
ODD = [
    b'data: {"choices":[{"finish_reason":"stop"}]}\n\n',
    b'data: {"choices":[{"finish_reason" :null}]}\n\n',
    b'data: {"choices":[],"usage":{}}\n\n',
    b'data: {"choices":[],"usage":nul',
    b'data: {"choices":[],"usage"\n\n',
    b'data: {"error":{},"choices":[]}\n\n',
    b'data: {"choices":[],"prompt_filter_results":[]}\n\n',
    b'data: {"choices":[ {"delta":{}}]}\n\n',
    b'data: {"choices":[],"other":{"choices":[{}]}}\n\n',
    b'data: {"message":"an error without choices"}\n\n',
    b'data: {"choices":[],"other":{"choices":[]}}\n\n',
    b'data:{"choices":[]}\n\n',
    b'data: {"choices":[]}\ndata: \n\n',
    b'event: x\ndata: {"choices":[]}\n\n',
    b"data: [DONE]\n\n",
    b": comment\n\n",
    b"\n",
    b"data: {\n\n",
    b'"',
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
