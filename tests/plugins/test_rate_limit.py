"""The limits hold, and what a request took is given back however it ends."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest

from gateway import AccountLimits, Attempt, Caller, Exchange, Refused, Services, Usage
from gateway.base.errors import StoreAway
from gateway.config.channel import Channel, Timers
from gateway.config.schema import Config, StoreSettings
from gateway.store.client.client import Client
from gateway.store.embedded import EmbeddedStore
from gateway.testing import PATIENT, exchange, run_end, run_request, services, started
from plugins import rate_limit
from plugins.pacing import REFUSALS_PER_S
from plugins.rate_limit import RateLimit
from tests.patience import PATIENCE_S

SLOTS = "gw:{alice}:limits:test:slots"
TOKEN_SLOTS = "gw:{alice}:limits:test:alice-x:slots"
SETTINGS = Config(
    channels={
        "short": Channel("http://127.0.0.1:1/v1", timers=Timers(total=30)),
        "long": Channel("http://127.0.0.1:2/v1", timers=Timers(total=100)),
    },
    store=PATIENT,
)
HASTY = msgspec.structs.replace(SETTINGS, store=StoreSettings(timeout=0.5))
"""A short timeout, for a store that does not respond."""


@pytest.fixture
async def given(store_url: str, tmp_path: Path) -> AsyncIterator[Services]:
    async with services(tmp_path, store_url, SETTINGS) as given:
        yield given


def asking(
    limits: AccountLimits | None = None,
    path: str = "/v1/chat/completions",
    *,
    of_token: AccountLimits | None = None,
    token_id: str = "alice-x",
    **body: object,
) -> Exchange:
    asked = exchange(body, path=path, method="POST" if path.endswith("completions") else "GET")
    asked[Caller] = Caller(
        account="alice",
        token_id=token_id,
        group="default",
        limits=limits or AccountLimits(),
        token_limits=of_token or AccountLimits(),
    )
    return asked


async def refusal(given: Services, plugin: RateLimit, asked: Exchange) -> Refused:
    with pytest.raises(Refused) as refused:
        await run_request(plugin, asked, given)
    return refused.value


async def test_what_is_left_is_in_the_headers(given: Services) -> None:
    plugin = await started(RateLimit(requests_per_minute=60, tokens_per_minute=1000), given)
    asked = asking(max_tokens=100, n=2, messages=[{"role": "user", "content": "x" * 368}])
    await run_request(plugin, asked, given)
    assert asked.response_headers == {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "59",
        "x-ratelimit-reset-requests": "1000ms",
        "x-ratelimit-limit-tokens": "1000",
        "x-ratelimit-remaining-tokens": "700",
        "x-ratelimit-reset-tokens": "18000ms",
    }
    await plugin.stop()


async def test_too_many_requests_a_minute_are_refused_with_a_time_to_retry_after(given: Services) -> None:
    plugin = await started(RateLimit(requests_per_minute=2, concurrent=None), given)
    for _ in range(2):
        await run_request(plugin, asking(), given)
    asked = asking()
    refused = await refusal(given, plugin, asked)
    assert (refused.status, refused.code) == (429, "rate_limited")
    assert "limit of 2 requests a minute" in refused.message
    assert refused.retry_after_s is not None
    assert 29 < refused.retry_after_s <= 30
    assert asked.response_headers["x-ratelimit-remaining-requests"] == "0"
    await plugin.stop()


async def test_too_many_at_once_wait_for_one_to_end(given: Services, client: Client) -> None:
    plugin = await started(RateLimit(concurrent=2), given)
    first, second, third = asking(), asking(), asking()
    await run_request(plugin, first, given)
    await run_request(plugin, second, given)
    refused = await refusal(given, plugin, third)
    assert (refused.status, refused.code, refused.retry_after_s) == (429, "too_many_concurrent", 1)
    assert "limit of 2 requests at once" in refused.message
    await run_end(plugin, third, given)
    assert (await refusal(given, plugin, asking())).code == "too_many_concurrent"
    await run_end(plugin, first, given)
    await run_request(plugin, asking(), given)
    await plugin.stop()


async def test_a_release_that_was_planned_and_not_sent_is_planned_again(given: Services, client: Client) -> None:
    plugin = await started(RateLimit(concurrent=2), given)
    asked = asking()
    await run_request(plugin, asked, given)
    assert await plugin.end_step(asked) is not None
    await run_end(plugin, asked, given)
    assert await client.call("ZCARD", SLOTS) == 0
    await plugin.stop()


async def test_a_slot_is_leased_for_the_longest_request_and_a_minute_and_no_body_is_read(
    given: Services, client: Client
) -> None:
    plugin = await started(RateLimit(), given)
    asked = asking()
    await run_request(plugin, asked, given)
    assert asked.model == "", "there is no limit of tokens"
    expiry = int(await client.call("ZSCORE", SLOTS, asked.id))
    assert abs(expiry - (time.time() + 160) * 1000) < PATIENCE_S * 1000
    await plugin.stop()


@pytest.mark.parametrize("of", ["account", "token"])
async def test_the_true_count_of_tokens_replaces_the_estimate(given: Services, of: str) -> None:
    plugin = await started(RateLimit(tokens_per_minute=1000 if of == "account" else None), given)
    own = AccountLimits(tokens_per_minute=1000 if of == "token" else None)
    asked = asking(of_token=own, max_tokens=800)
    await run_request(plugin, asked, given)
    refused = await refusal(given, plugin, asking(of_token=own, max_tokens=500))
    assert (refused.status, refused.code) == (429, "rate_limited")
    assert f"Over the {of}'s limit of 1000 tokens a minute" in refused.message
    asked.attempts.append(Attempt("short", "m", usage=Usage(100, 100, "upstream")))
    await run_end(plugin, asked, given)
    again = asking(of_token=own, max_tokens=500)
    await run_request(plugin, again, given)
    assert 250 < int(again.response_headers["x-ratelimit-remaining-tokens"]) < 310
    refused = await refusal(given, plugin, asking(of_token=own, max_tokens=2000))
    assert (refused.status, refused.code, refused.should_retry) == (429, "rate_limited", False)
    assert refused.retry_after_s is None
    assert f"over the {of}'s limit of 1000 a minute" in refused.message
    await plugin.stop()


async def test_a_request_without_usage_counts_no_tokens(given: Services) -> None:
    plugin = await started(RateLimit(tokens_per_minute=1000), given)
    for _ in range(5):
        asked = asking(max_tokens=900)
        await run_request(plugin, asked, given)
        await run_end(plugin, asked, given)
    await plugin.stop()


async def test_other_requests_only_count_as_requests(given: Services, client: Client) -> None:
    plugin = await started(RateLimit(requests_per_minute=6, tokens_per_minute=1, concurrent=1), given)
    for path in ("/v1/models", "/v1/account", "/v1/requests/r", "/v1/requests", "/v1/usage", "/v1/account/ledger"):
        asked = asking(path=path)
        await run_request(plugin, asked, given)
        tokens = [name for name in asked.response_headers if name.endswith("tokens")]
        assert bool(tokens) == (path == "/v1/account"), "it asks what is left, and takes nothing"
        await run_end(plugin, asked, given)
    assert await client.call("EXISTS", SLOTS) == 0
    assert (await refusal(given, plugin, asking(path="/v1/models"))).code == "rate_limited"
    await plugin.stop()


async def test_an_accounts_own_limits_replace_the_configured_ones(given: Services) -> None:
    plugin = await started(RateLimit(requests_per_minute=1, concurrent=1), given)
    own = AccountLimits(requests_per_minute=100, concurrent=3)
    for _ in range(3):
        await run_request(plugin, asking(own), given)
    refused = await refusal(given, plugin, asking(own))
    assert refused.code == "too_many_concurrent"
    assert "limit of 3" in refused.message
    assert "limit of 1 requests a minute" in (await refusal(given, plugin, asking())).message
    await plugin.stop()


async def test_a_tokens_limits_apply_in_addition_and_the_refusal_says_so(given: Services) -> None:
    plugin = await started(RateLimit(requests_per_minute=50, concurrent=4), given)
    own = AccountLimits(requests_per_minute=3, concurrent=2)
    asked = asking(of_token=own)
    await run_request(plugin, asked, given)
    assert asked.response_headers["x-ratelimit-limit-requests"] == "3"
    assert asked.response_headers["x-ratelimit-remaining-requests"] == "2"
    await run_request(plugin, asking(of_token=own), given)
    refused = await refusal(given, plugin, asking(of_token=own))
    assert (refused.status, refused.code) == (429, "too_many_concurrent")
    assert "Over the token's limit of 2 requests at once" in refused.message
    for _ in range(2):
        await run_request(plugin, asking(of_token=own, token_id="alice-y"), given)
    refused = await refusal(given, plugin, asking(of_token=own, token_id="alice-z"))
    assert "Over the account's limit of 4 requests at once" in refused.message
    await run_end(plugin, asked, given)
    await run_request(plugin, asking(of_token=own), given)
    refused = await refusal(given, plugin, asking(of_token=own))
    assert (refused.status, refused.code) == (429, "rate_limited")
    assert "Over the token's limit of 3 requests a minute" in refused.message
    await plugin.stop()


async def test_requests_that_are_no_completions_count_as_requests_of_the_token_alone(
    given: Services, client: Client
) -> None:
    plugin = await started(RateLimit(), given)
    for own in (AccountLimits(requests_per_minute=1, tokens_per_minute=1, concurrent=1), AccountLimits(concurrent=1)):
        asked = asking(path="/v1/models", of_token=own)
        await run_request(plugin, asked, given)
        await run_end(plugin, asked, given)
    assert await client.call("EXISTS", "gw:{alice}:limits:test:alice-x:slots") == 0
    own = AccountLimits(requests_per_minute=1)
    refused = await refusal(given, plugin, asking(path="/v1/models", of_token=own))
    assert "Over the token's limit of 1 requests a minute" in refused.message
    await plugin.stop()


async def test_what_is_left_of_the_tighter_is_explained(given: Services) -> None:
    plugin = await started(RateLimit(requests_per_minute=50, tokens_per_minute=1000, concurrent=4), given)
    own = AccountLimits(requests_per_minute=3, concurrent=2)
    text = await plugin.explain(asking(of_token=own))
    assert "1 of 3 requests left of 3 a minute" in text
    assert "of 1000 tokens left of 1000 a minute" in text
    assert "a slot, of 2 at once" in text
    for _ in range(2):
        await run_request(plugin, asking(of_token=own), given)
    with pytest.raises(Refused, match="Over the token's limit of 2 requests at once"):
        await plugin.explain(asking(of_token=own))
    await plugin.stop()


async def test_no_limits_at_all_let_everything_through(given: Services) -> None:
    plugin = await started(RateLimit(requests_per_minute=None, concurrent=None), given)
    for _ in range(100):
        asked = asking()
        await run_request(plugin, asked, given)
        assert asked.response_headers == {}
        await run_end(plugin, asked, given)
    await plugin.stop()


async def test_two_in_one_chain_count_separately_and_the_headers_show_the_tighter(given: Services) -> None:
    plugins = [
        await started(RateLimit(requests_per_minute=rate), given.named(name))
        for name, rate in (("wide", 50), ("tight", 5), ("wider", 500))
    ]
    asked = asking()
    for plugin in plugins:
        await run_request(plugin, asked, given)
    assert asked.response_headers["x-ratelimit-limit-requests"] == "5"
    assert asked.response_headers["x-ratelimit-remaining-requests"] == "4"
    for plugin in plugins:
        await run_end(plugin, asked, given)
        await plugin.stop()


@pytest.mark.parametrize("setting", [{"requests_per_minute": 0}, {"tokens_per_minute": -1}, {"concurrent": 10**9}])
def test_a_limit_out_of_range_is_refused(setting: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(setting))} must be from 1"):
        RateLimit(**setting)


@pytest.fixture
def frozen(tmp_path: Path) -> Iterator[EmbeddedStore]:
    """A server of the test's own, which it can stop and continue."""
    store = EmbeddedStore.start(tmp_path / "own")
    yield store
    os.kill(store.pid, signal.SIGCONT)
    store.stop()


async def slots(store: EmbeddedStore, key: str = SLOTS) -> int:
    client = Client.connect(store.url, timeout_s=PATIENCE_S)
    held = int(await client.call("ZCARD", key))
    await client.close()
    return held


async def test_a_slot_taken_while_the_store_did_not_respond_is_released(frozen: EmbeddedStore, tmp_path: Path) -> None:
    async with services(tmp_path / "data", frozen.url, HASTY) as given:
        plugin = await started(RateLimit(concurrent=1), given)
        warm = asking()
        await run_request(plugin, warm, given)
        await run_end(plugin, warm, given)
        os.kill(frozen.pid, signal.SIGSTOP)
        asked = asking()
        with pytest.raises(StoreAway):
            await run_request(plugin, asked, given)
        os.kill(frozen.pid, signal.SIGCONT)
        await run_end(plugin, asked, given)
        await run_request(plugin, asking(), given)
        assert await slots(frozen) == 1
        await plugin.stop()


async def test_a_failed_release_is_retried_when_the_store_is_back(
    frozen: EmbeddedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rate_limit, "RETRY_AFTER_S", 0.01)
    async with services(tmp_path / "data", frozen.url, HASTY) as given:
        plugin = await started(RateLimit(concurrent=2), given)
        both = asking(), asking(of_token=AccountLimits(concurrent=1))
        for asked in both:
            await run_request(plugin, asked, given)
        assert await slots(frozen, TOKEN_SLOTS) == 1
        os.kill(frozen.pid, signal.SIGSTOP)
        for asked in both:
            await run_end(plugin, asked, given)
        os.kill(frozen.pid, signal.SIGCONT)
        async with asyncio.timeout(PATIENCE_S):
            while await slots(frozen) or await slots(frozen, TOKEN_SLOTS):
                await asyncio.sleep(0.01)
        await plugin.stop()


async def test_pending_releases_are_retried_at_the_stop(frozen: EmbeddedStore, tmp_path: Path) -> None:
    async with services(tmp_path / "data", frozen.url, HASTY) as given:
        plugin = await started(RateLimit(concurrent=1), given)
        asked = asking()
        await run_request(plugin, asked, given)
        os.kill(frozen.pid, signal.SIGSTOP)
        await run_end(plugin, asked, given)
        os.kill(frozen.pid, signal.SIGCONT)
        await plugin.stop()
        assert await slots(frozen) == 0


async def test_a_release_that_can_never_succeed_does_not_block_the_others(
    frozen: EmbeddedStore, tmp_path: Path
) -> None:
    async with services(tmp_path / "data", frozen.url, HASTY) as given:
        plugin = await started(RateLimit(concurrent=2), given)
        broken, sound = asking(), asking()
        broken[Caller] = Caller(account="broken", token_id="broken-x", group="default")
        for asked in (broken, sound):
            await run_request(plugin, asked, given)
        await given.redis.call("SET", "gw:{broken}:limits:test:slots", "of another type")
        os.kill(frozen.pid, signal.SIGSTOP)
        for asked in (broken, sound):
            await run_end(plugin, asked, given)
        os.kill(frozen.pid, signal.SIGCONT)
        await plugin.stop()
        assert await slots(frozen) == 0


async def test_an_account_that_goes_on_is_refused_later_and_later(given: Services) -> None:
    plugin = await started(RateLimit(requests_per_minute=1), given)
    await run_request(plugin, asking(), given)
    began = time.monotonic()
    refused = await asyncio.gather(*(refusal(given, plugin, asking()) for _ in range(REFUSALS_PER_S + 10)))
    assert {each.code for each in refused} == {"rate_limited"}
    assert time.monotonic() - began > 10 / REFUSALS_PER_S / 2
    await plugin.stop()
