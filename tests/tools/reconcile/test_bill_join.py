"""Lines of a bill and calls of the usage log are joined by every id that an upstream gives."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.tools.reconcile.bill import BillLine
from gateway.tools.reconcile.join import Call, Join, Sum

DAY = "2026-11-20"
EXACT = {"differs": 0, "only_in_bill": 0, "only_in_log": 0, "billed_twice": 0}


def line(id: str, cost: int, number: int = 2, day: str = DAY, model: str = "m") -> BillLine:  # noqa: A002
    return BillLine(number, id, cost, day, model)


def call(*names: str, cost: int | None = 10, day: str = DAY, channel: str = "openai", request: str = "r") -> Call:
    return Call(request, day, "m", channel, names, cost)


@pytest.fixture
def join() -> Iterator[Join]:
    with Join(lambda billed, expected: abs(billed - expected) > 2) as made:
        yield made


def joined(
    join: Join, lines: list[BillLine], calls: list[Call], *channels: str, first: str = "", last: str = ""
) -> dict[str, int]:
    """Join both sides and return how many were found of each kind."""
    join.add_lines(lines)
    join.add_calls(calls)
    join.join(first, last, channels)
    return {kind: join.total(kind)[0] for kind in EXACT}


def test_a_line_is_found_by_either_id(join: Join) -> None:
    found = joined(join, [line("req-1", 10), line("cmpl-2", 10)], [call("req-1", "cmpl-1"), call("req-2", "cmpl-2")])
    assert found == EXACT
    assert (join.count("matched"), join.count("agree")) == (2, 2)


def test_both_ids_of_a_call_on_the_bill_are_one_amount(join: Join) -> None:
    assert joined(join, [line("req", 4), line("cmpl", 6)], [call("req", "cmpl")])["differs"] == 0


def test_the_channels_and_the_days_may_be_given(join: Join) -> None:
    calls = [call("b", channel="azure"), call("c", channel="azure", day="2026-11-19"), call("d")]
    given = joined(join, [line("a", 10)], calls, "azure", first="2026-11-19", last="2026-11-20")
    assert given == EXACT | {"only_in_bill": 1, "only_in_log": 2}


def test_a_bill_without_days_is_of_the_days_of_its_calls(join: Join) -> None:
    calls = [call("a"), call("b", day="2026-11-22"), call("c", day="2026-11-21"), call("d", day="2026-11-23")]
    join.add_lines([line("a", 10, day=""), line("b", 10, day="")])
    join.add_calls(calls)
    assert join.join("", "", ()) == (DAY, "2026-11-22", ["openai"])
    assert [side.id for side in join.found("only_in_log")] == ["c"]


def test_an_id_of_several_calls_joins_nothing(join: Join) -> None:
    found = joined(join, [line("echo", 10), line("cmpl-2", 10)], [call("echo", "cmpl-1"), call("echo", "cmpl-2")])
    assert found == EXACT | {"only_in_bill": 1, "only_in_log": 1}
    assert join.count("shared") == 1


def test_the_sums_of_each_day_and_model(join: Join) -> None:
    lines = [line("a", 10), line("b", 20), line("b", 5), line("x", 7, model="other"), line("", 3, day="", model="")]
    calls = [call("a"), call("b", day="2026-11-21"), call("c", cost=None), call("d", cost=4)]
    joined(join, lines, calls)
    assert list(join.sums()) == [
        Sum("", "", 1, 0, 0, 3, 0),
        Sum(DAY, "m", 1, 3, 1, 10, 14),
        Sum(DAY, "other", 1, 0, 0, 7, 0),
        Sum("2026-11-21", "m", 2, 1, 0, 25, 10),
    ]


def test_the_largest_differences_come_first(join: Join) -> None:
    joined(join, [line("a", 20), line("b", 90), line("c", 50)], [call("a"), call("b"), call("c")])
    assert [side.id for side in join.found("differs")] == ["b", "c", "a"]


def test_the_temporary_file_is_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with Join(lambda billed, expected: billed != expected) as join:
        join.add_lines([line("a", 1)])
        assert list(tmp_path.iterdir())
    assert list(tmp_path.iterdir()) == []
