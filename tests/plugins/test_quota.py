"""What a request holds, what it is charged, and which requests are refused, with a real store."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest
import structlog

from gateway import Attempt, Budget, Budgets, BudgetUse, Calendar, Caller, Exchange, Refused, Services, Usage
from gateway.base.errors import StoreAway, headers_of
from gateway.chat.prompt import MAX_PARTS
from gateway.config.channel import Channel, Timers
from gateway.config.model import Model, Serving, Tier
from gateway.config.schema import Config, Group, StoreSettings
from gateway.operations.operation import Operation
from gateway.store.accounts import MAX_AMOUNT, Account, AccountStatus
from gateway.store.client.client import Client
from gateway.store.embedded import EmbeddedStore
from gateway.store.money.scripts import KEEP_S
from gateway.testing import PATIENT, FixedClock, exchange, run_end, run_request, services, started
from plugins import quota
from plugins.quota import Quota, described, over
from tests.place import Place
from tests.whole.budgeted import used

TOP_UP = 1_000_000
TIMERS = Timers(connect=1, first_byte=2, total=30)
SETTINGS = Config(
    channels={
        "one": Channel("http://127.0.0.1:1/v1", timers=TIMERS),
        "two": Channel("http://127.0.0.1:2/v1", timers=TIMERS),
    },
    models={
        "m": Model(["one"], Decimal(1), Decimal(2), max_output_tokens=100),
        "twice": Model(["one", "two"], Decimal(1), Decimal(2), max_output_tokens=100),
        "cheap": Model(["one"], Decimal("0.000001"), Decimal("0.000001")),
        "sees": Model(
            ["one"], Decimal(1), Decimal(2), max_output_tokens=100, image_tokens=70, audio_tokens=500, file_tokens=3000
        ),
        "huge": Model(["one"], Decimal(1_000_000), Decimal(1_000_000), file_tokens=10_000_000),
        "gift": Model([Serving("one")], free=True),
        "parts": Model(
            ["one"],
            Decimal(10),
            Decimal(20),
            cached_input=Decimal(1),
            cache_write=Decimal(12),
            request=Decimal("0.0005"),
            tiers=(Tier(1000, Decimal(30), Decimal(40)),),
            max_output_tokens=100,
        ),
    },
    groups={"default": Group(), "vip": Group(ratio=Decimal("0.1")), "few": Group(models=["gift"])},
    store=PATIENT,
)
HASTY = msgspec.structs.replace(SETTINGS, store=StoreSettings(timeout=0.5))
"""A short timeout, for a store that does not respond."""


@pytest.fixture
async def given(store_url: str, tmp_path: Path) -> AsyncIterator[Services]:
    async with services(tmp_path, store_url, SETTINGS) as given:
        await given.store.accounts.create("acme")
        await given.store.wallet.credit("acme", "opening", TOP_UP)
        yield given


def asking(group: str = "default", **body: object) -> Exchange:
    asked = exchange(body)
    asked[Caller] = Caller(account="acme", token_id="acme-x", group=group)
    return asked


async def account(given: Services) -> Account:
    found = await given.store.accounts.get("acme")
    assert found is not None
    return found


async def ended(plugin: Quota, given: Services, asked: Exchange, *usages: Usage) -> int:
    """Return what the account is charged after these attempts; nothing is held any more."""
    asked.attempts.extend(Attempt("one", "m", usage=usage) for usage in usages)
    await run_end(plugin, asked, given)
    left = await account(given)
    assert (left.held_micros, left.holds) == (0, 0)
    assert TOP_UP - left.balance_micros == asked.charge_micros
    assert await given.store.wallet.verify("acme") == []
    return asked.charge_micros


async def refusal(given: Services, plugin: Quota, asked: Exchange) -> tuple[int, str]:
    with pytest.raises(Refused) as refused:
        await run_request(plugin, asked, given)
    await run_end(plugin, asked, given)
    return refused.value.status, refused.value.code


class TestTheSizeOfTheHold:
    @pytest.mark.parametrize(
        ("body", "group", "output"),
        [
            ({}, "default", 2 * 100),
            ({"max_tokens": 7}, "default", 2 * 7),
            ({"max_completion_tokens": 7, "n": 3}, "default", 2 * 3 * 7),
            ({"max_tokens": 5000}, "default", 2 * 5000),
        ],
    )
    async def test_is_the_most_that_body_and_ceiling_can_cost(
        self, given: Services, body: dict[str, object], group: str, output: int
    ) -> None:
        plugin = await started(Quota(), given)
        asked = asking(group, **body)
        await run_request(plugin, asked, given)
        assert (await account(given)).held_micros == (await asked.body()).prompt_tokens_bound() + output
        await run_end(plugin, asked, given)

    async def test_counts_one_attempt_and_the_groups_ratio(self, given: Services) -> None:
        plugin = await started(Quota(), given)
        asked = asking("vip", model="twice")
        await run_request(plugin, asked, given)
        full = (await asked.body()).prompt_tokens_bound() + 200
        assert (await account(given)).held_micros == -(-full // 10)
        await run_end(plugin, asked, given)

    async def test_counts_encoded_parts_as_the_model_states(self, given: Services) -> None:
        plugin = await started(Quota(), given)
        parts = [
            {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 100_000}},
            {"type": "input_audio", "input_audio": {"data": "A" * 100_000, "format": "wav"}},
            {"type": "file", "file": {"file_id": "7"}},
        ]
        for model, most in (("m", 4800 + 20_000 + 128_000), ("sees", 70 + 500 + 3000)):
            asked = asking(model=model, messages=[{"role": "user", "content": parts}])
            await run_request(plugin, asked, given)
            text = (await asked.body()).prompt_bound.text
            assert text < 1000
            assert (await account(given)).held_micros == text + most + 200
            await run_end(plugin, asked, given)

    async def test_of_thousands_of_parts_is_refused_where_the_balance_does_not_cover_it(self, given: Services) -> None:
        plugin = await started(Quota(), given)
        parts = [{"type": "file", "file": {"file_id": "7"}}] * MAX_PARTS
        for model in ("m", "huge"):
            asked = asking(model=model, messages=[{"role": "user", "content": parts}])
            assert await refusal(given, plugin, asked) == (402, "insufficient_balance")

    @pytest.mark.parametrize(
        "given_ceiling", [{}, {"max_tokens": 7}, {"max_completion_tokens": 5000}, {"max_tokens": None}]
    )
    async def test_is_for_the_ceiling_that_is_sent(self, given: Services, given_ceiling: dict[str, Any]) -> None:
        plugin = await started(Quota(), given)
        asked = asking(n=2, **given_ceiling)
        await run_request(plugin, asked, given)
        body, ((candidate, _),) = await asked.body(), given.catalogue.tiers("m", "default", Operation.CHAT)[0]
        name, limit = candidate.channel.ceiling_name, candidate.max_output_tokens
        sent = json.loads(b"".join(body.upstream(candidate.model, name, limit, ask_usage=True)))
        held = (await account(given)).held_micros
        assert held == body.prompt_tokens_bound() + 2 * sent["n"] * sent["max_tokens"]
        await run_end(plugin, asked, given)

    async def test_has_the_highest_price_of_a_token_and_the_price_of_the_request(self, given: Services) -> None:
        plugin = await started(Quota(), given)
        short, long = asking(model="parts"), asking(model="parts", user="x" * 1000)
        bound = (await short.body()).prompt_tokens_bound()
        await run_request(plugin, short, given)
        assert (await account(given)).held_micros == bound * 12 + 100 * 20 + 500
        await run_end(plugin, short, given)
        bound = (await long.body()).prompt_tokens_bound()
        await run_request(plugin, long, given)
        assert (await account(given)).held_micros == bound * 30 + 100 * 40 + 500
        await run_end(plugin, long, given)

    async def test_is_capped_by_max_hold_and_the_charge_is_not(self, given: Services) -> None:
        plugin = await started(Quota(max_hold=Decimal("0.00005")), given)
        asked = asking()
        await run_request(plugin, asked, given)
        assert (await account(given)).held_micros == 50
        assert await ended(plugin, given, asked, Usage(60, 40, "upstream")) == 140

    async def test_a_fraction_of_a_micro_is_rounded_up_once(self, given: Services) -> None:
        plugin = await started(Quota(), given)
        asked = asking(model="cheap")
        await run_request(plugin, asked, given)
        assert (await account(given)).held_micros == 1
        assert await ended(plugin, given, asked, Usage(3, 4, "upstream")) == 1

    @pytest.mark.parametrize(
        ("group", "model"), [("default", "gift"), ("default", "unheard-of"), ("few", "m"), ("nowhere", "m")]
    )
    async def test_nothing_is_held_for_what_is_free_or_will_be_refused(
        self, given: Services, group: str, model: str
    ) -> None:
        plugin = await started(Quota(), given)
        asked = asking(group, model=model)
        await run_request(plugin, asked, given)
        assert (await account(given)).holds == 0
        assert await ended(plugin, given, asked) == 0

    async def test_no_other_path_is_looked_at(self, given: Services) -> None:
        plugin = await started(Quota(), given)
        listing = exchange(method="GET", path="/v1/models")
        await run_request(plugin, listing, given)
        await run_end(plugin, listing, given)
        assert (await account(given)).holds == 0


class TestFailover:
    async def failed(self, plugin: Quota, given: Services, asked: Exchange, *usages: Usage) -> None:
        """Let attempts fail, one after the other, and ask each time whether another may follow."""
        for usage in usages:
            asked.attempts.append(Attempt("one", "m", usage=usage))
            await plugin.on_failover(asked)

    async def test_adds_what_a_failed_attempt_may_be_billed(self, given: Services) -> None:
        plugin = await started(Quota(), given)
        asked = asking(model="twice")
        await run_request(plugin, asked, given)
        one = (await account(given)).held_micros
        for billed in (15, 30):
            await self.failed(plugin, given, asked, Usage(15, 0, "estimated"))
            assert (await account(given)).held_micros == one + billed
        assert await ended(plugin, given, asked, Usage(1 << 39, 1 << 39, "upstream")) == one + 30
        assert (asked.price["hold_micros"], asked.price["capped_micros"]) == (one + 30, one + 30)

    async def test_adds_nothing_for_an_attempt_that_costs_nothing(self, given: Services) -> None:
        plugin = await started(Quota(), given)
        asked = asking(model="twice")
        await run_request(plugin, asked, given)
        one = (await account(given)).held_micros
        await self.failed(plugin, given, asked, Usage(), Usage())
        assert (await account(given)).held_micros == one
        assert await ended(plugin, given, asked, Usage(11, 6, "upstream")) == 23
        assert "hold_micros" not in asked.price

    async def test_adds_nothing_twice_where_it_is_asked_again(self, given: Services) -> None:
        plugin = await started(Quota(), given)
        asked = asking(model="twice")
        await run_request(plugin, asked, given)
        one = (await account(given)).held_micros
        await self.failed(plugin, given, asked, Usage(15, 0, "estimated"), Usage())
        await plugin.on_failover(asked)
        assert (await account(given)).held_micros == one + 15
        await run_end(plugin, asked, given)

    async def test_is_refused_where_the_balance_does_not_cover_it(self, given: Services) -> None:
        plugin = await started(Quota(), given)
        asked = asking(model="twice")
        await run_request(plugin, asked, given)
        one = (await account(given)).held_micros
        await given.store.wallet.adjust("acme", "down", one + 14 - TOP_UP, "test")
        with pytest.raises(Refused) as refused:
            await self.failed(plugin, given, asked, Usage(15, 0, "estimated"))
        assert refused.value.code == "insufficient_balance"
        await run_end(plugin, asked, given)
        left = await account(given)
        assert (left.held_micros, left.balance_micros, asked.charge_micros) == (0, one + 14 - 15, 15)
        assert asked.price["hold_refused_micros"] == one + 15
        assert await given.store.wallet.verify("acme") == []

    async def test_is_refused_where_the_hold_is_gone(self, given: Services, client: Client) -> None:
        plugin = await started(Quota(), given)
        asked = asking(model="twice")
        await run_request(plugin, asked, given)
        await given.store.wallet.settle("acme", asked.id, 0)
        with pytest.raises(StoreAway, match="DONE"):
            await self.failed(plugin, given, asked, Usage(15, 0, "estimated"))

    async def test_a_capped_hold_does_not_grow_but_the_charge_may(self, given: Services) -> None:
        plugin = await started(Quota(max_hold=Decimal("0.00005")), given)
        asked = asking(model="twice")
        await run_request(plugin, asked, given)
        bound = (await asked.body()).prompt_tokens_bound()
        await self.failed(plugin, given, asked, Usage(15, 0, "estimated"))
        assert (await account(given)).held_micros == 50
        assert await ended(plugin, given, asked, Usage(1 << 39, 1 << 39, "upstream")) == bound + 200 + 15

    async def test_of_what_is_free_needs_nothing(self, given: Services) -> None:
        plugin = await started(Quota(), given)
        asked = asking(model="gift")
        await run_request(plugin, asked, given)
        await self.failed(plugin, given, asked, Usage(15, 0, "estimated"))
        assert await ended(plugin, given, asked) == 0

    async def test_each_failed_attempt_raises_what_a_crash_charges(self, given: Services, client: Client) -> None:
        plugin = await started(Quota(on_crash="charge_floor"), given)
        asked = asking(model="twice")
        await run_request(plugin, asked, given)
        estimate = (await asked.body()).prompt_tokens_estimate
        await self.failed(plugin, given, asked, Usage(estimate, 0, "estimated"))
        record = await client.call("HGET", "gw:{acme}:wallet", asked.id)
        assert int(record.split()[3]) == 2 * estimate
        await run_end(plugin, asked, given)


class TestTheCharge:
    @pytest.mark.parametrize(
        ("usages", "charge"),
        [
            ((), 0),
            ((Usage(),), 0),
            ((Usage(11, 6, "upstream"),), 11 + 12),
            ((Usage(11, 6, "estimated"),), 11 + 12),
            ((Usage(11, 0, "estimated"),), 11),
            ((Usage(5, 0, "estimated"), Usage(), Usage(11, 6, "upstream")), 5 + 11 + 12),
        ],
        ids=["upstream never reached", "upstream refused", "exact", "estimated", "caller gone", "several attempts"],
    )
    async def test_is_what_the_attempts_used(self, given: Services, usages: tuple[Usage, ...], charge: int) -> None:
        plugin = await started(Quota(), given)
        asked = asking()
        await run_request(plugin, asked, given)
        assert await ended(plugin, given, asked, *usages) == charge
        assert asked.price == {"input": 1_000_000, "output": 2_000_000, "ratio": "1"}

    async def test_has_each_part_at_its_price_and_the_record_has_the_prices(self, given: Services) -> None:
        plugin = await started(Quota(), given)
        asked = asking(model="parts")
        await run_request(plugin, asked, given)
        charge = 4 * 10 + 5 * 1 + 2 * 12 + 6 * 20 + 500
        assert await ended(plugin, given, asked, Usage(11, 6, "upstream", 5, 2, answers=1)) == charge
        assert asked.price == {
            "input": 10_000_000,
            "output": 20_000_000,
            "ratio": "1",
            "cached_input": 1_000_000,
            "cache_write": 12_000_000,
            "request": 500,
        }

    async def test_of_a_call_that_was_not_answered_has_no_price_of_the_request(self, given: Services) -> None:
        plugin = await started(Quota(), given)
        asked = asking(model="parts")
        await run_request(plugin, asked, given)
        assert await ended(plugin, given, asked, Usage(11, 0, "estimated")) == 110
        assert "request" not in asked.price

    async def test_never_exceeds_the_full_hold_and_the_price_says_so(self, given: Services) -> None:
        plugin = await started(Quota(), given)
        asked = asking()
        await run_request(plugin, asked, given)
        full = (await account(given)).held_micros
        assert await ended(plugin, given, asked, Usage(1 << 39, 1 << 39, "upstream")) == full
        assert asked.price["capped_micros"] == full

    async def test_that_is_capped_is_logged_with_what_it_would_have_been(self, given: Services) -> None:
        plugin = await started(Quota(), given)
        asked = asking()
        asked.channel = "one"
        await run_request(plugin, asked, given)
        full = (await account(given)).held_micros
        with structlog.testing.capture_logs() as logs:
            await ended(plugin, given, asked, Usage(1000, 1000, "upstream"))
        assert logs == [
            {
                "event": "charge_capped",
                "log_level": "warning",
                "request_id": asked.id,
                "account": "acme",
                "model": "m",
                "channel": "one",
                "charged_micros": full,
                "uncapped_micros": 3000,
            }
        ]

    async def test_that_is_just_covered_is_not_logged(self, given: Services) -> None:
        plugin = await started(Quota(), given)
        asked = asking()
        await run_request(plugin, asked, given)
        bound = (await asked.body()).prompt_tokens_bound()
        with structlog.testing.capture_logs() as logs:
            await ended(plugin, given, asked, Usage(bound, 100, "upstream"))
        assert logs == []

    async def test_of_two_ends_counts_once(self, given: Services) -> None:
        plugin = await started(Quota(), given)
        asked = asking()
        await run_request(plugin, asked, given)
        await ended(plugin, given, asked, Usage(11, 6, "upstream"))
        await run_end(plugin, asked, given)
        assert (await account(given)).balance_micros == TOP_UP - 23


class TestRefusals:
    async def test_a_balance_that_does_not_cover_the_most(self, given: Services) -> None:
        plugin = await started(Quota(), given)
        await given.store.wallet.adjust("acme", "down", -TOP_UP + 10, "test")
        assert await refusal(given, plugin, asking()) == (402, "insufficient_balance")

    async def test_a_credit_line_covers_it(self, given: Services) -> None:
        plugin = await started(Quota(), given)
        await given.store.wallet.adjust("acme", "down", -TOP_UP, "test")
        await given.store.accounts.change("acme", credit_line=1000)
        asked = asking()
        await run_request(plugin, asked, given)
        asked.attempts.append(Attempt("one", "m", usage=Usage(11, 6, "upstream")))
        await run_end(plugin, asked, given)
        assert (await account(given)).balance_micros == -23

    async def test_more_holds_than_an_account_may_have(self, given: Services) -> None:
        plugin = await started(Quota(max_holds=1), given)
        first = asking()
        await run_request(plugin, first, given)
        second = asking()
        with pytest.raises(Refused, match="has 1 requests in progress, the most that it may have at once") as refused:
            await run_request(plugin, second, given)
        await run_end(plugin, second, given)
        assert (refused.value.status, refused.value.code) == (429, "too_many_concurrent")
        await run_end(plugin, first, given)
        assert (await account(given)).holds == 0

    async def test_by_default_the_holds_of_an_account_are_no_limit_on_its_requests_at_once(
        self, given: Services
    ) -> None:
        plugin = await started(Quota(), given)
        several = [asking() for _ in range(300)]
        for asked in several:
            await run_request(plugin, asked, given)
        assert (await account(given)).holds == 300
        for asked in several:
            await run_end(plugin, asked, given)

    @pytest.mark.parametrize("status", [AccountStatus.SUSPENDED, AccountStatus.CLOSED])
    async def test_an_account_that_is_not_active(self, given: Services, status: AccountStatus) -> None:
        plugin = await started(Quota(), given)
        await given.store.accounts.change("acme", status=status)
        assert await refusal(given, plugin, asking()) == (403, "account_inactive")


class TestACrash:
    @pytest.mark.parametrize("on_crash", ["release", "charge_floor"])
    async def test_ends_the_hold_with_its_lease_at_the_next_request(self, given: Services, on_crash: str) -> None:
        plugin = await started(Quota(on_crash=on_crash, lease_margin=60), given)  # type: ignore[arg-type]
        plugin.lease_ms = 1
        dead = asking(messages=[{"role": "user", "content": "x" * 400}])
        await run_request(plugin, dead, given)
        floor = (await dead.body()).prompt_tokens_estimate if on_crash == "charge_floor" else 0
        await asyncio.sleep(0.01)
        next_one = asking()
        with structlog.testing.capture_logs() as logs:
            await run_request(plugin, next_one, given)
        assert {"event": "holds_expired", "account": "acme", "requests": [dead.id], "log_level": "warning"} in logs
        left = await account(given)
        assert (left.holds, left.balance_micros) == (1, TOP_UP - floor)

    async def test_a_hold_outlives_the_slowest_request_by_the_margin(self, given: Services) -> None:
        assert (await started(Quota(lease_margin=5), given)).lease_ms == 35_000


async def test_a_hold_whose_reply_was_lost_is_released(tmp_path: Path) -> None:
    store = EmbeddedStore.start(tmp_path / "store")
    try:
        async with services(tmp_path, store.url, HASTY) as given:
            await given.store.accounts.create("acme")
            await given.store.wallet.credit("acme", "opening", TOP_UP)
            plugin = await started(Quota(), given)
            asked = asking()
            os.kill(store.pid, signal.SIGSTOP)
            with pytest.raises(StoreAway):
                await run_request(plugin, asked, given)
            os.kill(store.pid, signal.SIGCONT)
            assert await ended(plugin, given, asked) == 0
    finally:
        store.stop()


WRONG_HOLDS = ("0", "-1", "NaN", "sNaN", "Infinity", "-Infinity", "1e30", "1e-30")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"max_holds": 0}, "max_holds must be from 1 to 1000000"),
        ({"max_holds": 10**15}, "max_holds must be from 1 to 1000000"),
        *(({"max_hold": Decimal(text)}, "max_hold must be from 0.000001 to 1000000000") for text in WRONG_HOLDS),
        ({"lease_margin": 0.5}, "lease_margin must be from 1 to 86400 seconds"),
    ],
)
def test_a_setting_out_of_range_is_named(settings: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Quota(**settings)  # type: ignore[arg-type]


async def test_timers_whose_hold_the_wallet_would_refuse_stop_the_start(place: Place) -> None:
    assert quota.LONGEST_LEASE_S == KEEP_S
    channel = Channel(base_url="http://h/v1", timers=Timers(total=86_400))
    config = Config(channels={"slow": channel})
    async with services(*place, config) as given:
        with pytest.raises(ValueError, match="may take 86400 s, and with lease_margin its hold would last 86460 s"):
            await started(Quota(), given)


async def test_a_hold_beyond_every_balance_is_refused_without_asking_the_store(place: Place) -> None:
    assert quota.LARGEST_AMOUNT == MAX_AMOUNT
    model = Model(channels=["slow"], input=Decimal(1_000_000), output=Decimal(1_000_000))
    config = Config(
        store=PATIENT,
        channels={"slow": Channel(base_url="http://h/v1")},
        models={"m": model},
        groups={"default": Group(ratio=Decimal(1000))},
    )
    async with services(*place, config) as given:
        plugin = await started(Quota(), given)
        asked = exchange({"n": 16, "max_tokens": 1_000_000})
        asked[Caller] = Caller("tester", "tester-1", "default")
        with pytest.raises(Refused) as refused:
            await run_request(plugin, asked, given)
    assert refused.value.code == "insufficient_balance"


BERLIN = ZoneInfo("Europe/Berlin")
MIDNIGHT_MS = int(datetime(2026, 12, 1, tzinfo=BERLIN).timestamp() * 1000)
IN_BERLIN: Config = msgspec.structs.replace(SETTINGS, time_zone="Europe/Berlin")


@pytest.fixture
async def berlin(store_url: str, tmp_path: Path) -> AsyncIterator[Services]:
    async with services(tmp_path, store_url, IN_BERLIN) as berlin:
        await berlin.store.accounts.create("acme")
        await berlin.store.wallet.credit("acme", "opening", 1_000_000)
        yield berlin


@pytest.fixture
async def plugin(berlin: Services) -> Quota:
    return await started(Quota(), berlin)


def with_budgets(account: Budgets, token: Budgets | None = None, **body: object) -> Exchange:
    asked = exchange(body)
    caller = Caller("acme", "acme-1a2b3c4d", "default", budgets=account, token_budgets=token or Budgets())
    asked[Caller] = caller
    return asked


async def refused(berlin: Services, plugin: Quota, asked: Exchange) -> Refused:
    with pytest.raises(Refused) as refusal:
        await run_request(plugin, asked, berlin)
    await run_end(plugin, asked, berlin)
    with pytest.raises(Refused) as explained:
        await plugin.explain(asked)
    assert explained.value.message == refusal.value.message
    return refusal.value


async def end(berlin: Services, plugin: Quota, asked: Exchange, *usages: Usage) -> None:
    asked.attempts.extend(Attempt("one", "m", usage=usage) for usage in usages)
    await run_end(plugin, asked, berlin)
    assert await berlin.store.wallet.verify("acme") == []


@pytest.mark.parametrize(
    ("owner", "kind", "ends_ms", "message"),
    [
        (
            *("account", "month", MIDNIGHT_MS),
            "The account's budget of the month does not cover the most that this request can cost, beside what is spent and "
            "requests in progress: that is 0.000004, and 0.000003 is left. It resets at 2026-12-01T00:00:00+01:00. Ask for a "
            "larger one, or lower max_tokens to 33.",
        ),
        (
            *("token", "total", None),
            "The token's total budget does not cover the most that this request can cost, beside what is spent and requests "
            "in progress: that is 0.000004, and 0.000003 is left. It does not reset. Ask for a larger one, or lower "
            "max_tokens to 33.",
        ),
        (
            *("token", "requests", MIDNIGHT_MS),
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


async def test_a_free_request_counts_as_one_once_it_is_answered(berlin: Services, plugin: Quota) -> None:
    budgets = Budgets(day=1, requests=1)
    failed, answered = with_budgets(budgets, model="gift"), with_budgets(budgets, model="gift")
    await run_request(plugin, failed, berlin)
    await end(berlin, plugin, failed)
    await run_request(plugin, answered, berlin)
    await end(berlin, plugin, answered, Usage(7, 9, "upstream", answers=1))
    assert await used(berlin.store.client, "acme") == {"D": 0, "R": 1}
    assert (await refused(berlin, plugin, with_budgets(budgets, model="gift"))).code == "budget_exceeded"


async def test_a_free_request_needs_neither_balance_nor_money_of_a_budget(berlin: Services, plugin: Quota) -> None:
    await berlin.store.wallet.adjust("acme", "debt", -2_000_000, "test")
    asked = with_budgets(Budgets(total=1, requests=9), model="gift")
    assert "has used 0 of 9 requests" in str(await plugin.explain(asked))
    await run_request(plugin, asked, berlin)
    await run_end(plugin, asked, berlin)


async def test_a_caller_without_budgets_costs_no_argument(berlin: Services, plugin: Quota) -> None:
    asked, limited = with_budgets(Budgets()), with_budgets(Budgets(day=10**6))
    plain, counted = await plugin.request_step(asked), await plugin.request_step(limited)
    assert plain is not None
    assert counted is not None
    assert (len(plain.arguments), len(counted.arguments)) == (8, 11)
    free = with_budgets(Budgets(), model="gift")
    assert await plugin.request_step(free) is None
