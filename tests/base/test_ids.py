"""A request's id contains its time of arrival."""

from __future__ import annotations

import re
import time

import pytest

from gateway.base import ids
from gateway.base.ids import LAST_MS, arrival_ms, check_time, first_id, month, new_id, utc
from tests.records import id_at

NEW_YEAR_MS = 1_798_761_600_000


def test_an_id_contains_the_arrival_to_the_millisecond() -> None:
    assert arrival_ms(id_at(NEW_YEAR_MS - 1)) == NEW_YEAR_MS - 1
    assert utc(NEW_YEAR_MS - 1) == "2026-12-31T23:59:59.999Z"


def test_a_request_belongs_to_the_month_of_its_arrival_in_utc() -> None:
    assert month(id_at(NEW_YEAR_MS - 1)) == "2026-12"
    assert month(id_at(NEW_YEAR_MS)) == "2027-01"


@pytest.mark.parametrize(
    ("id", "message"),
    [
        ("", "not a request id"),
        ("nonsense", "not a request id"),
        ("../../etc", "not a request id"),
        ("5f0c54ba-9b3a-4c1e-8c59-4a9b4b8c9d10", "not a request id"),
        ("zzzzzzzz-zzzz-7197-9f1b-61a58aba6c92", "invalid literal for int() with base 16: 'zzzzzzzzzzzz'"),
        ("ffffffff-ffff-7197-9f1b-61a58aba6c92", "not a time"),
    ],
)
def test_a_malformed_id_raises_value_error(id: str, message: str) -> None:  # noqa: A002
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        month(id)


def test_a_time_is_written_up_to_the_year_9999() -> None:
    assert (utc(0), utc(LAST_MS)) == ("1970-01-01T00:00:00.000Z", "9999-12-31T23:59:59.999Z")
    check_time(id_at(LAST_MS))
    for wrong in (LAST_MS + 1, -1):
        with pytest.raises(ValueError, match=r"^not a time$"):
            utc(wrong)
    with pytest.raises(ValueError, match=r"^not a time$"):
        check_time(id_at(LAST_MS + 1))


def test_first_id_separates_the_ids_before_a_time_from_those_at_it() -> None:
    assert id_at(NEW_YEAR_MS - 1) < first_id(NEW_YEAR_MS) < id_at(NEW_YEAR_MS)


@pytest.mark.parametrize("ahead_s", [-30 * 86_400, 40 * 86_400])
def test_ids_follow_the_clock_of_the_store_and_leave_it(monkeypatch: pytest.MonkeyPatch, ahead_s: int) -> None:
    monkeypatch.setattr(ids, "_new", ids._new)
    monkeypatch.setattr(ids, "_ahead_ms", 0)
    now = round(time.time() * 1000)
    for ahead_ms in (1000 * ahead_s, 0):
        ids.follow(now + ahead_ms)
        made = [new_id() for _ in range(1000)]
        times = list(map(arrival_ms, made))
        assert (len(set(made)), times) == (1000, sorted(times))
        assert abs(arrival_ms(made[-1]) - now - ahead_ms) < 30_000
        assert abs(ids.ahead_ms() - ahead_ms) < 30_000
