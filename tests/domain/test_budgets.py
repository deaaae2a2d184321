"""A caller's budgets and their windows; replies and exchanges of plugins."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from gateway import Reply as ReplyReply
from gateway import Usage as ReplyUsage
from gateway.base.errors import Refused
from gateway.chat.request import Body
from gateway.chat.usage import Usage
from gateway.domain.budgets import NEVER, Budget, BudgetUse, Calendar, budget_in
from gateway.domain.exchange import Attempt, Exchange, Request
from gateway.domain.facts import Budgets, Caller
from gateway.domain.reply import Reply
from gateway.operations.operation import Operation
from gateway.testing import FixedClock

# The windows of a time zone, and the budgets of a caller.
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
    def changes_soon(zone: ZoneInfo, now: float) -> bool:
        return len({datetime.fromtimestamp(now + day * 86_400, zone).utcoffset() for day in (-2, 2)}) > 1

    clock = FixedClock(datetime(2010, 1, 1, tzinfo=UTC).timestamp())
    calendar = Calendar(ZoneInfo(zone), clock)
    caller = Caller("acme", "acme-1a2b3c4d", "default", budgets=ALL)
    end = clock.now + 3 * 8766 * 1800
    while clock.now < end:
        clock.move(1800 if changes_soon(ZoneInfo(zone), clock.now) else 11 * 1800)  # not the same hours of each day
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


# A plugin learns at once that its reply cannot be sent.
@pytest.mark.parametrize(
    "wrong",
    [
        *({"status": status} for status in (None, "200", 199, 100, 600)),
        *({"status": status, "body": b"{}"} for status in (204, 205, 304)),
        {"body": None},
        {"body": "{}"},
        *({"content_type": text} for text in (None, "\ud800", "text/plain\r\na: b")),
        *({"headers": headers} for headers in (None, {"a": 1}, {"a": "b\nc: d"})),
    ],
    ids=repr,
)
def test_a_reply_that_cannot_be_sent_is_an_error_where_it_is_made(wrong: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError)):
        Reply(**wrong)


@pytest.mark.parametrize("status", [204, 205, 304])
def test_a_status_without_a_body_is_allowed(status: int) -> None:
    assert Reply(status).body == b""


async def test_a_refused_body_is_refused_again_without_being_read() -> None:
    read = []

    async def read_once() -> Body:
        read.append("body")
        raise Refused(400, "invalid_request", "'max_tokens' must be a whole number.")

    of = Exchange(Request("POST", "/v1/chat/completions", {}, "", Operation.CHAT), read_once)
    for _ in range(2):
        with pytest.raises(Refused, match="max_tokens"):
            await of.body()
    assert read == ["body"]


async def _no_body() -> Body:
    raise AssertionError


def new_exchange() -> Exchange:
    return Exchange(Request("POST", "/v1/chat/completions", {}, "127.0.0.1", Operation.CHAT), _no_body)


def test_what_was_charged_is_said_by_one_plugin_alone() -> None:
    of, quota, other = new_exchange(), object(), "other"
    of.attempts.append(Attempt("a", "m", 200, usage=Usage(3, 4, "upstream")))
    assert (of.charge_micros, of.price, of.usage.prompt_tokens) == (0, {}, 3)
    of.charge(quota, 11, {"input": 1}, of.usage)
    of.charge(quota, 9)
    with pytest.raises(RuntimeError, match="str charges a request that object charges"):
        of.charge(other, 0)
    for name, value in (("charge_micros", 0), ("price", {}), ("usage", Usage()), ("cost_micros", 0)):
        with pytest.raises(AttributeError, match=f"property '{name}' of 'Exchange' object has no setter"):
            setattr(of, name, value)
    of.price.clear()
    of.attempts.clear()
    assert (of.charge_micros, of.price, of.usage.prompt_tokens) == (9, {"input": 1}, 3)


@pytest.mark.parametrize("wrong", ["12", 1.0, True, None, -1, 2**63, 2**70])
def test_a_charge_that_no_record_can_have_is_refused(wrong: Any) -> None:
    of = new_exchange()
    with pytest.raises((TypeError, ValueError), match="a charge is"):
        of.charge("quota", wrong)
    with pytest.raises((TypeError, ValueError)):
        of.charge("quota", 1, ["input"])  # type: ignore[arg-type]
    assert (of.charge_micros, of.price) == (0, {})


# A reply is checked where it is made.
async def nothing() -> AsyncIterator[bytes]:
    yield b""


@pytest.mark.parametrize(
    "usage",
    [
        ReplyUsage(-5, -5),
        ReplyUsage(7, 3.5),  # type: ignore[arg-type]
        ReplyUsage("a", 1),  # type: ignore[arg-type]
        ReplyUsage(10**18, 1),
        ReplyUsage(True, 1),
        ReplyUsage(5, 5, cached_tokens=6),
        (5, 5),
    ],
    ids=repr,
)
async def test_a_usage_that_cannot_be_charged_is_refused(usage: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="usage"):
        ReplyReply(events=nothing(), usage=usage, charge="as-upstream")
    assert ReplyReply(events=nothing(), usage=ReplyUsage(5, 7, cached_tokens=5), charge="as-upstream").usage is not None
