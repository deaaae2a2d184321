"""The usage record and its JSON."""

from __future__ import annotations

from gateway.usage.record import decode, encode
from tests.records import arrival, end


def test_a_record_survives_its_encoding() -> None:
    record = end(arrival())
    assert decode(encode(record)) == record
