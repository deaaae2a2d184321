"""The name and the data of an event, however its lines are."""

from __future__ import annotations

from codecs import BOM_UTF8

from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.chat.sse import parse_event

LINES = st.sampled_from(
    [
        b"data: {}",
        b"data:{}",
        b"data",
        b"data: a b \t",
        b"event: error",
        b"error: x",
        b": comment",
        b"",
        b"id: 7",
        b"\xff",
        b"dataset: 1",
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
