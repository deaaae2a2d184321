"""A batch is written with each sum, row and place as if its records had been written one by one."""

from __future__ import annotations

import itertools

import pytest

from gateway.domain.exchange import Outcome
from gateway.usage import queries
from gateway.usage.home import Home, Writer
from gateway.usage.record import MAX_NUMBER, Record
from tests.records import COSTED, arrival, end, writer
from tests.usage.test_database import rolled_up, summed

OPENED = [arrival() for _ in range(3)]
ENDED = [end(OPENED[0], account="b", **COSTED), end(OPENED[1], account="a"), end(OPENED[2], account="b")]
CRASHED = end(OPENED[0], account="c", outcome=Outcome.GATEWAY_CRASHED)


@pytest.fixture
def database(home: Home) -> Writer:
    return writer(home)


@pytest.mark.parametrize("size", [1, 2, 3, 8])
@pytest.mark.parametrize("records", [
    [*OPENED, CRASHED, *ENDED, *OPENED, *ENDED],
    [CRASHED, ENDED[0], CRASHED, end(OPENED[0], account="late"), OPENED[0]],
])  # fmt: skip
def test_the_size_of_the_batches_changes_nothing(database: Writer, records: list[Record], size: int) -> None:
    coming = iter(records)
    while batch := list(itertools.islice(coming, size)):
        database.write(batch)
    expected = {record.id: record for record in ENDED if record in records}
    assert {record.id: record for record in queries.select(database.home)} == expected
    assert rolled_up(database.home) == summed(database.home)


def test_ends_have_their_places_in_the_order_in_which_they_came(database: Writer) -> None:
    tail = queries.Tail(database.home, queries.START)
    database.write([*OPENED, *ENDED])
    assert [record for _, record in tail.poll()] == ENDED
    database.write([end(OPENED[1], account="again")])
    assert tail.poll() == []


def test_sums_beyond_what_a_file_can_hold_stop_no_record(database: Writer) -> None:
    opened = [arrival() for _ in range(1100)]
    database.write([end(record, prompt_tokens=MAX_NUMBER, completion_tokens=-MAX_NUMBER) for record in opened])
    (total,) = rolled_up(database.home)
    assert total["requests"] == len(opened)
    assert total["prompt_tokens"] == pytest.approx(MAX_NUMBER * len(opened))
    assert total["completion_tokens"] == pytest.approx(-MAX_NUMBER * len(opened))
