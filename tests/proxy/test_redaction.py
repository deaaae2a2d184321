"""A credential in an upstream's events is replaced wherever it is, also where only the texts of the events differ."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.chat.events import EventStream
from gateway.proxy.chunk_hooks import REDACTED, Redaction

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
