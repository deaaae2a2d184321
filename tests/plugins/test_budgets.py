"""What `quota` answers and explains to callers with budgets, with a real store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import msgspec
import pytest

from gateway import Attempt, Budget, Budgets, BudgetUse, Calendar, Caller, Exchange, Refused, Services, Usage
from gateway.base.errors import headers_of
from gateway.config.schema import Config
from gateway.store.client.client import Client
from gateway.testing import FixedClock, exchange, run_end, run_request, services, started
from plugins.quota import Quota, described, over
from tests.plugins.test_quota import SETTINGS
from tests.whole.budgeted import used

BERLIN = ZoneInfo("Europe/Berlin")
MIDNIGHT_MS = int(datetime(2026, 12, 1, tzinfo=BERLIN).timestamp() * 1000)
IN_BERLIN: Config = msgspec.structs.replace(SETTINGS, time_zone="Europe/Berlin")


@pytest.fixture
async def given(store_url: str, client: Client, tmp_path: Path) -> AsyncIterator[Services]:
    async with services(tmp_path, store_url, IN_BERLIN) as given:
        await given.store.accounts.create("acme")
        await given.store.wallet.credit("acme", "opening", 1_000_000)
        yield given


@pytest.fixture
async def plugin(given: Services) -> Quota:
    return await started(Quota(), given)


def asking(account: Budgets, token: Budgets | None = None, **body: object) -> Exchange:
    asked = exchange(body)
    caller = Caller("acme", "acme-1a2b3c4d", "default", budgets=account, token_budgets=token or Budgets())
    asked[Caller] = caller
    return asked


async def refused(given: Services, plugin: Quota, asked: Exchange) -> Refused:
    with pytest.raises(Refused) as refusal:
        await run_request(plugin, asked, given)
    await run_end(plugin, asked, given)
    with pytest.raises(Refused) as explained:
        await plugin.explain(asked)
    assert explained.value.message == refusal.value.message
    return refusal.value


async def end(given: Services, plugin: Quota, asked: Exchange, *usages: Usage) -> None:
    asked.attempts.extend(Attempt("one", "m", usage=usage) for usage in usages)
    await run_end(plugin, asked, given)
    assert await given.store.wallet.verify("acme") == []


@pytest.mark.parametrize(
    ("owner", "kind", "ends_ms", "message"),
    [
        (
            "account",
            "month",
            MIDNIGHT_MS,
            "The account's budget of the month does not cover the most that this request can cost, beside what is spent and "
            "requests in progress: that is 0.000004, and 0.000003 is left. It resets at 2026-12-01T00:00:00+01:00. Ask for a "
            "larger one, or lower max_tokens to 33.",
        ),
        (
            "token",
            "total",
            None,
            "The token's total budget does not cover the most that this request can cost, beside what is spent and requests "
            "in progress: that is 0.000004, and 0.000003 is left. It does not reset. Ask for a larger one, or lower "
            "max_tokens to 33.",
        ),
        (
            "token",
            "requests",
            MIDNIGHT_MS,
            "The token's budget of requests a day is used up, with the requests in progress. It resets at "
            "2026-12-01T00:00:00+01:00. Ask for a larger one.",
        ),
    ],
)
def test_the_error_names_the_budget_and_when_it_resets(
    owner: str, kind: str, ends_ms: int | None, message: str
) -> None:
    use = BudgetUse(Budget(owner, kind, 5, "", ""), 2, ends_ms)  # type: ignore[arg-type]
    error = over(use, Calendar(BERLIN, FixedClock()), 4, lambda left: 11 * left)
    figures = {"needed_micros": 4, "available_micros": 3, "max_tokens_that_fit": 33}
    assert error.details == ({"available_requests": 0} if kind == "requests" else figures)
    assert (error.status, error.code, error.message) == (402, "budget_exceeded", message)
    assert (error.type, headers_of(error)) == ("insufficient_quota", {"x-should-retry": "false"})


def test_waiting_is_not_advised_where_the_request_can_cost_more_than_the_budget() -> None:
    use = BudgetUse(Budget("token", "day", 5, "", ""), 0, 0)
    error = over(use, Calendar(BERLIN, FixedClock()), 6, lambda left: 0)
    assert "can cost, even while nothing is spent: that is 0.000006, and 0.000005 is left." in error.message
    assert error.message.endswith("or shorten the messages: no max_tokens is low enough.")


def test_an_explanation_says_what_is_used() -> None:
    calendar = Calendar(BERLIN, FixedClock())
    money = BudgetUse(Budget("account", "day", 500, "D", ""), 30, MIDNIGHT_MS)
    requests = BudgetUse(Budget("token", "requests", 5, "R", ""), 5, None)
    assert described(money, calendar) == (
        "the account's budget of the day has used 0.00003 of 0.0005 and resets at 2026-12-01T00:00:00+01:00"
    )
    assert (
        described(requests, calendar)
        == "the token's budget of requests a day has used 5 of 5 requests and does not reset"
    )


async def test_a_free_request_counts_as_one_once_it_is_answered(given: Services, plugin: Quota) -> None:
    budgets = Budgets(day=1, requests=1)
    failed, answered = asking(budgets, model="gift"), asking(budgets, model="gift")
    await run_request(plugin, failed, given)
    await end(given, plugin, failed)
    await run_request(plugin, answered, given)
    await end(given, plugin, answered, Usage(7, 9, "upstream", answers=1))
    assert await used(given.store.client, "acme") == {"D": 0, "R": 1}
    assert (await refused(given, plugin, asking(budgets, model="gift"))).code == "budget_exceeded"


async def test_a_free_request_needs_neither_balance_nor_money_of_a_budget(given: Services, plugin: Quota) -> None:
    await given.store.wallet.adjust("acme", "debt", -2_000_000, "test")
    asked = asking(Budgets(total=1, requests=9), model="gift")
    assert "has used 0 of 9 requests" in str(await plugin.explain(asked))
    await run_request(plugin, asked, given)
    await run_end(plugin, asked, given)


async def test_a_caller_without_budgets_costs_no_argument(given: Services, plugin: Quota) -> None:
    asked, limited = asking(Budgets()), asking(Budgets(day=10**6))
    plain, counted = await plugin.request_step(asked), await plugin.request_step(limited)
    assert plain is not None
    assert counted is not None
    assert (len(plain.arguments), len(counted.arguments)) == (8, 11)
    free = asking(Budgets(), model="gift")
    assert await plugin.request_step(free) is None
