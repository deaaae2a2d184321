"""The usage record and its JSON."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.domain.exchange import Outcome
from gateway.usage.database import JSON_COLUMNS
from gateway.usage.record import (
    MAX_NUMBER,
    NUMBERS,
    NUMBERS_OR_NONE,
    AttemptRecord,
    Record,
    WrittenRecord,
    decode,
    encode,
    line_of,
)
from tests.records import COSTED, arrival, end


def test_a_record_survives_its_encoding() -> None:
    refused = {"requested_model": "gpt-4oo", "unavailable": {"east": "is full"}}
    for record in (end(arrival()), end(arrival(), **COSTED), end(arrival(), **refused)):
        assert decode(encode(record)) == record
        written = encode(WrittenRecord(**msgspec.structs.asdict(record)))
        assert decode(written) == record
        assert len(written) < len(encode(record))
        assert b"changed_by" not in written


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


@settings(max_examples=500, deadline=None)
@given(st.dictionaries(st.sampled_from(Record.__struct_fields__), VALUES, max_size=3))
@example({})
@example({"attempts": [AttemptRecord("a"), AttemptRecord("b", 200, "")], "price": {"input": 1, "currency": "x"}})
def test_a_record_that_has_a_line_has_values_that_the_database_can_store(values: dict[str, Any]) -> None:
    try:
        record = decode(line_of(msgspec.structs.replace(end(arrival()), **values)))
    except (ValueError, TypeError):
        assert values
        return
    with closing(sqlite3.connect(":memory:")) as file:
        for name in Record.__struct_fields__:
            value = getattr(record, name)
            stored = msgspec.json.encode(value) if name in JSON_COLUMNS else value
            assert file.execute("SELECT ?", (stored,)).fetchone() == (stored,)
            assert type(value) is not int or abs(value) <= MAX_NUMBER


@pytest.mark.parametrize("name", [*NUMBERS, *NUMBERS_OR_NONE])
def test_a_number_has_bounds(name: str) -> None:
    for right in (0, MAX_NUMBER, -MAX_NUMBER):
        assert getattr(decode(line_of(end(arrival(), **{name: right}))), name) == right
    for wrong in (MAX_NUMBER + 1, -MAX_NUMBER - 1, 2**64, 0.5, "1", True):
        with pytest.raises(ValueError, match=name):
            line_of(end(arrival(), **{name: wrong}))
