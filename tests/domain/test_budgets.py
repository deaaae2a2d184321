"""The windows of a time zone, and the budgets of a caller."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo

import pytest

from gateway.domain.budgets import NEVER, Budget, BudgetUse, Calendar, budget_in
from gateway.domain.facts import Budgets, Caller
from gateway.testing import FixedClock

ALL = Budgets(day=1, week=2, month=3, total=4, requests=5)
BERLIN = ZoneInfo("Europe/Berlin")


def at(moment: str, zone: tzinfo) -> Calendar:
    return Calendar(zone, FixedClock(datetime.fromisoformat(moment).timestamp()))


def ends_of(moment: str, zone: tzinfo) -> dict[str, list[str]]:
    """Return the ends of all windows in the time zone, by kind."""
    calendar = at(moment, zone)
    budgets = calendar.budgets(Caller("acme", "acme-1a2b3c4d", "default", budgets=ALL))
    return {
        budget.kind: [calendar.ends_at(int(end)) for end in budget.ends.split()]
        for budget in budgets
        if budget.kind != "total"
    }


def test_a_day_begins_at_midnight_a_week_on_monday_and_a_month_on_its_first_day() -> None:
    ends = ends_of("2026-11-22T16:00:00+00:00", UTC)
    assert ends["day"] == ends["requests"] == [f"2026-11-{day}T00:00:00+00:00" for day in (22, 23, 24, 25)]
    assert ends["week"] == [f"2026-{day}T00:00:00+00:00" for day in ("11-16", "11-23", "11-30", "12-07")]
    assert ends["month"] == [f"{month}-01T00:00:00+00:00" for month in ("2026-11", "2026-12", "2027-01", "2027-02")]


def test_borders_are_those_of_the_time_zone() -> None:
    assert ends_of("2026-11-30T23:30:00+00:00", BERLIN)["month"][0] == "2026-12-01T00:00:00+01:00"
    assert ends_of("2026-11-30T22:30:00+00:00", BERLIN)["month"][1] == "2026-12-01T00:00:00+01:00"


@pytest.mark.parametrize(
    ("moment", "ends", "hours"),
    [
        ("2026-03-29T12:00:00+02:00", ["2026-03-29T00:00:00+01:00", "2026-03-30T00:00:00+02:00"], 23),
        ("2026-10-25T12:00:00+01:00", ["2026-10-25T00:00:00+02:00", "2026-10-26T00:00:00+01:00"], 25),
    ],
)
def test_a_day_on_which_summer_time_changes_is_shorter_or_longer(moment: str, ends: list[str], hours: int) -> None:
    begin, end, *_ = ends_of(moment, BERLIN)["day"]
    assert [begin, end] == ends
    assert datetime.fromisoformat(end) - datetime.fromisoformat(begin) == timedelta(hours=hours)


def test_a_day_without_midnight_begins_at_its_first_moment() -> None:
    begin, end, *_ = ends_of("2026-04-24T12:00:00+00:00", ZoneInfo("Africa/Cairo"))["day"]
    assert begin == "2026-04-24T01:00:00+03:00"
    assert end == "2026-04-25T00:00:00+03:00"


def test_a_midnight_that_is_twice_is_the_first_of_them() -> None:
    begin, *_ = ends_of("2026-10-25T12:00:00+00:00", ZoneInfo("Atlantic/Azores"))["day"]
    assert begin == "2026-10-25T00:00:00+00:00"


@pytest.mark.parametrize(
    "zone", ["UTC", "Europe/Berlin", "America/Sao_Paulo", "Asia/Kolkata", "Pacific/Apia", "Africa/Cairo"]
)
def test_the_ends_around_any_moment_ascend_and_the_second_is_not_over(zone: str) -> None:
    clock = FixedClock(datetime(2010, 1, 1, tzinfo=UTC).timestamp())
    calendar = Calendar(ZoneInfo(zone), clock)
    caller = Caller("acme", "acme-1a2b3c4d", "default", budgets=ALL)
    for _ in range(3 * 8766):
        clock.move(3600 / 2)
        for budget in calendar.budgets(caller):
            begin, *ends = map(int, budget.ends.split())
            assert len(budget.ends.split()[0]) == 13
            if budget.kind != "total":
                assert begin <= clock.now * 1000 < ends[0] <= ends[1]
                assert (
                    ends[0] - begin
                    <= {"day": 26, "requests": 26, "week": 8 * 24, "month": 32 * 24}[budget.kind] * 3_600_000
                )


def test_windows_follow_a_clock_that_steps_back() -> None:
    clock = FixedClock(datetime(2026, 11, 22, 0, 1, tzinfo=UTC).timestamp())
    calendar, caller = Calendar(UTC, clock), Caller("acme", "acme-x", "default", budgets=Budgets(day=1))
    (budget,) = calendar.budgets(caller)
    clock.move(-120)
    (earlier,) = calendar.budgets(caller)
    assert earlier.ends.split()[1:] == budget.ends.split()[:3]


def test_budgets_of_account_and_token_have_fields_of_their_own() -> None:
    calendar = at("2026-11-22T16:00:00+00:00", UTC)
    own = Caller("acme", "acme-1a2b3c4d", "default", budgets=Budgets(month=3), token_budgets=ALL)
    found = [(budget.owner, budget.field, budget.limit) for budget in calendar.budgets(own)]
    token = [("token", f"{letter}1a2b3c4d", limit) for limit, letter in enumerate("DWMTR", 1)]
    assert found == [("account", "M", 3), *token]
    assert calendar.budgets(Caller("acme", "acme-1a2b3c4d", "default")) == ()


def test_a_mark_names_a_budget_and_when_it_ends() -> None:
    budgets = [Budget("account", "day", 1, "D", ""), Budget("token", "total", 2, "T1a2b3c4d", "")]
    assert budget_in("DE1800000000000", budgets) == (budgets[0], 1_800_000_000_000)
    assert budget_in(f"T1a2b3c4dE{NEVER}", budgets) == (budgets[1], None)


def test_what_fits_into_a_budget() -> None:
    money, requests = Budget("account", "day", 10, "D", ""), Budget("account", "requests", 10, "R", "")
    assert BudgetUse(money, 4, None).covers(6)
    assert not BudgetUse(money, 4, None).covers(7)
    assert BudgetUse(money, 11, None).covers(0), "what costs nothing needs no money"
    assert BudgetUse(requests, 9, None).covers(100)
    assert not BudgetUse(requests, 10, None).covers(0)


def test_ends_are_written_in_the_time_zone() -> None:
    assert Calendar(BERLIN, FixedClock()).ends_at(1_780_272_000_000) == "2026-06-01T02:00:00+02:00"
    assert (
        Calendar(timezone(timedelta(hours=-3)), FixedClock()).ends_at(1_780_272_000_000) == "2026-05-31T21:00:00-03:00"
    )
