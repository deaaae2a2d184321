"""The usage record and its JSON."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.exchange import Outcome
from gateway.usage import record as module
from gateway.usage.record import (
    MAX_NUMBER,
    NUMBERS,
    NUMBERS_OR_NONE,
    OBJECTS,
    TEXTS,
    AttemptRecord,
    Record,
    checked,
    decode,
    encode,
    line_of,
)
from tests.records import COSTED, arrival, end


def test_a_record_survives_its_encoding() -> None:
    refused = {"requested_model": "gpt-4oo", "unavailable": {"east": "is full"}}
    for record in (end(arrival()), end(arrival(), **COSTED), end(arrival(), **refused)):
        assert decode(encode(record)) == record


def test_every_field_has_its_check() -> None:
    others = {"attempts", "outcome"}
    assert sorted({*TEXTS, *NUMBERS, *NUMBERS_OR_NONE, *OBJECTS, *others}) == sorted(Record.__struct_fields__)


WRONG: Any = AttemptRecord
VALUES = st.one_of(
    st.sampled_from(
        ["", "text", "upstream", "completed", "\ud800", "\0", 0, 1, -1, True, 1.0, 0.5, float("nan"), None, b"x"]
    ),
    st.sampled_from(
        [MAX_NUMBER, -MAX_NUMBER, MAX_NUMBER + 1, -MAX_NUMBER - 1, 2**64, 10**400, 3 + 4j, object(), Outcome.STOPPED]
    ),
    st.sampled_from(
        [
            [],
            {},
            [1],
            [{"channel": "c"}],
            [AttemptRecord("c")],
            [WRONG(1)],
            [WRONG("c", True)],
            [WRONG("c", 1, "", "2")],
            [WRONG("c", 1, "", 2, 3)],
            [WRONG("c", 1, "", 2, "id", None)],
            [AttemptRecord("c", 1, "", 2, "id", "id")],
        ]
    ),
    st.sampled_from(
        [[AttemptRecord("c", 2**60)], [AttemptRecord("c", error="\udfff")], (AttemptRecord("c"),), {"a": 1}]
    ),
    st.sampled_from(
        [{"a": None}, {1: 2}, {"a": {"b": [1]}}, {"a": object()}, {"a": float("inf")}, {"a": 10**30}, {None: 1}]
    ),
)


def verdict(line: Any) -> str:
    """Return what an attempt to get a line comes to."""
    try:
        return bytes(line()).decode()
    except (ValueError, TypeError) as error:
        return f"{isinstance(error, ValueError)}"


def decoded(record: Record) -> bytes:
    """Return the line of a record, which is always decoded."""
    try:
        line = encode(record)
    except (OverflowError, RecursionError) as error:
        raise ValueError from error
    checked(line)
    return line


@settings(max_examples=1500, deadline=None)
@given(st.dictionaries(st.sampled_from(Record.__struct_fields__), VALUES, max_size=3))
@example({})
@example({"attempts": [AttemptRecord("a"), AttemptRecord("b", 200, "")], "price": {"input": 1, "currency": "x"}})
def test_a_wrong_value_is_refused_as_if_every_line_were_decoded(values: dict[str, Any]) -> None:
    record = msgspec.structs.replace(end(arrival()), **values)
    assert verdict(lambda: line_of(record)) == verdict(lambda: decoded(record))


def test_the_line_of_a_correct_record_is_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(line: bytes) -> Record:
        raise AssertionError

    monkeypatch.setattr(module, "checked", never)
    for record in (
        arrival(),
        end(arrival()),
        end(arrival(), **COSTED),
        end(arrival(), attempts=[AttemptRecord("a", 500, "upstream_error")]),
    ):
        assert decode(line_of(record)) == record
