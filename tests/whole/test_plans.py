"""A request that a plan serves is the same as one that the hooks serve: commands of the store, bytes to the caller, records, money.

`python -m tests.fuzz.plans --requests 1000000 --seed 7` compares more of them than the suite does.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, ClassVar, Final

import pytest

from gateway import AccountLimits, AccountStatus, Budgets, Exchange, Plan, PlanPart, Plugin, Reply
from gateway.chain.loading import build
from gateway.chain.services import Store
from gateway.config.schema import load
from gateway.fake_upstream import FakeUpstream
from gateway.store.tokens import TokenStatus
from gateway.testing import Running, running
from plugins.auth import Auth
from plugins.model_routing import ModelRouting
from plugins.quota import Quota
from plugins.rate_limit import RateLimit
from plugins.usage_logger import UsageLogger
from tests.fuzz import plans
from tests.place import Place
from tests.runtime.test_reload import FileReloader
from tests.whole import raw
from tests.whole.test_revocation_early import charge_of

REQUESTS: Final = 300
SEED: Final = 2
CHAIN: Final = ("usage-logger", "auth", "rate-limit", "quota", "model-routing")
LIMITS: Final = {"requests_per_minute": 100_000, "concurrent": 50}


def document(base_url: str, chain: tuple[str, ...] = CHAIN, price: int = 1) -> str:
    """Return the configuration of the random requests with another chain."""
    uses = [{"use": name, "with": LIMITS} if name == "rate-limit" else {"use": name} for name in chain]
    return json.dumps(json.loads(plans.document(base_url, price)) | {"plugins": uses})


@pytest.fixture
async def upstream() -> AsyncIterator[FakeUpstream]:
    async with FakeUpstream(pace_s=0) as fake:
        yield fake


@pytest.fixture
async def gateway(upstream: FakeUpstream, store_url: str, tmp_path: Path) -> AsyncIterator[Running]:
    async with running(document(upstream.base_url), tmp_path, store_url) as running_gateway:
        yield running_gateway


async def test_random_requests_are_the_same_by_plans_and_by_hooks(tmp_path: Path) -> None:
    comparison = await plans.compare(tmp_path, REQUESTS, SEED)
    assert not comparison.differences, "\n".join(comparison.differences)
    assert comparison.requests == REQUESTS
    counts = comparison.counts
    assert min(counts["plan"], counts["plan refused"], counts["plan stale"], counts["429 rate_limited"]) > 0, counts


def counted_hooks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list to which the request hooks of the plugins that prepare are added as they run."""
    ran: list[str] = []
    for kind, hook in (
        (UsageLogger, "on_request"),
        (Auth, "request_step"),
        (RateLimit, "request_step"),
        (Quota, "request_step"),
        (ModelRouting, "on_request"),
    ):
        original = getattr(kind, hook)

        async def counting(plugin: Any, exchange: Any, original: Any = original) -> Any:
            ran.append(type(plugin).__name__)
            return await original(plugin, exchange)

        monkeypatch.setattr(kind, hook, counting)
    return ran


async def token_id_of(store: Store) -> str:
    (token,) = await store.tokens.all_of("tester")
    return token.id


Change = Callable[[Store], Awaitable[object]]
CHANGES: Final[dict[str, tuple[Change, int]]] = {
    "revocation": (lambda store: _of_token(store, store.tokens.set_status, TokenStatus.DISABLED), 401),
    "suspension": (lambda store: store.accounts.change("tester", status=AccountStatus.SUSPENDED), 403),
    "budget of the account": (lambda store: store.accounts.change("tester", budgets=Budgets(day=1)), 402),
    "budget of the token": (lambda store: _change_token(store, budgets={"day": 1}), 402),
    "group": (lambda store: store.accounts.change("tester", group="vip"), 200),
    "limits of the account": (
        lambda store: store.accounts.change("tester", limits=AccountLimits(tokens_per_minute=1)),
        429,
    ),
    "limits of the token": (lambda store: _change_token(store, limits={"tokens_per_minute": 1}), 429),
    "models of the token": (lambda store: _change_token(store, models=["tiered"]), 403),
    "models of the account": (lambda store: store.accounts.change("tester", models=["tiered"]), 404),
    "addresses of the token": (lambda store: _change_token(store, addresses=["10.0.0.0/8"]), 403),
    "expiry": (lambda store: _change_token(store, expires_at=1), 401),
    "rotation": (lambda store: _of_token(store, store.tokens.rotate, 0), 401),
    "balance": (lambda store: store.wallet.adjust("tester", "correction", -(10**9), "a test"), 402),
}
"""What a plan rests on, and with which status the next request is answered."""


async def _of_token(store: Store, change: Callable[..., Awaitable[object]], *given: object) -> object:
    return await change(await token_id_of(store), *given)


async def _change_token(store: Store, **given: Any) -> object:
    return await store.tokens.change(await token_id_of(store), **given)


async def charges_of(gateway: Running) -> int:
    """Return how many charges the ledger of the account has."""
    lines = (await gateway.store.wallet.ledger("tester", 100)).lines
    return sum(line.kind == "charge" for line in lines)


async def test_what_a_limit_refuses_gives_nothing_back(gateway: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    token, hooks = await gateway.token(), counted_hooks(monkeypatch)
    await gateway.store.accounts.change("tester", limits=AccountLimits(requests_per_minute=3, concurrent=2))
    statuses = []
    for _ in range(6):
        hooks.clear()
        statuses.append((await gateway.ask(token)).status)
    assert (statuses, hooks) == ([200] * 3 + [429] * 3, [])
    assert await charges_of(gateway) == 3
    assert await gateway.store.wallet.verify("tester") == []


async def test_requests_at_once_spend_the_last_cents_once(gateway: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    token, hooks = await gateway.token(credit=1000), counted_hooks(monkeypatch)  # a hold takes a quarter of it
    for _ in range(2):
        assert (await gateway.ask(token)).status == 200
    hooks.clear()
    answers = await asyncio.gather(*(gateway.ask(token) for _ in range(45)))
    assert hooks == []
    assert {answer.status for answer in answers} == {200, 402}
    admitted = [answer.headers["x-request-id"] for answer in answers if answer.status == 200]
    charges = [await charge_of(gateway, each) for each in admitted]
    account = await gateway.store.accounts.get("tester")
    assert account is not None
    assert 0 <= account.balance_micros == 1000 - sum(charges) - 2 * charges[0]
    assert (account.held_micros, account.holds) == (0, 0)
    assert await gateway.store.wallet.verify("tester") == []


async def test_a_deleted_token_is_refused_under_no_account(gateway: Running) -> None:
    token = await gateway.token()
    for _ in range(3):
        await gateway.ask(token)
    await gateway.store.tokens.delete(await token_id_of(gateway.store))
    refused = [await gateway.ask(token) for _ in range(4)]
    records = [(await gateway.store.usage.ask(each.headers["x-request-id"])).record for each in refused]
    assert [(each.status, each.account, each.token_id) for each in records if each] == [(401, "", "")] * 4


async def test_what_is_refused_before_the_token_is_checked_is_under_no_account(gateway: Running) -> None:
    token = await gateway.token()
    for _ in range(3):
        await gateway.ask(token)
    refused = await raw.ask(gateway.port, raw.chat(token, headers={"X-Client-Request-Id": "x" * 600}))
    record = (await gateway.store.usage.ask(refused.headers["x-request-id"])).record
    assert record is not None
    assert (record.status, record.refused_by, record.account) == (400, "usage-logger", "")


async def test_an_arrival_that_is_written_late_has_its_record(
    upstream: FakeUpstream, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = json.loads(document(upstream.base_url))
    given["plugins"][0]["with"] = {"unknown_per_minute": 1}
    async with running(json.dumps(given), *place) as gateway:
        token, hooks = await gateway.token(), counted_hooks(monkeypatch)
        before, _ = await gateway.ask(token), await gateway.ask(token)
        for _ in range(4):
            assert (await gateway.ask("sk-wrong")).status == 401
        hooks.clear()
        after = await gateway.ask(token)
        assert (after.status, hooks) == (200, [])
        charges = [await charge_of(gateway, each.headers["x-request-id"]) for each in (before, after)]
        assert charges[0] == charges[1] > 0


@pytest.mark.parametrize("change", CHANGES)
async def test_the_next_request_knows_of_each_change(
    gateway: Running, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    token, hooks = await gateway.token(), counted_hooks(monkeypatch)
    for _ in range(3):
        hooks.clear()
        before = await gateway.ask(token)
    assert (before.status, hooks) == (200, [])
    make, status = CHANGES[change]
    await make(gateway.store)
    after = await gateway.ask(token)
    assert after.status == status
    if status == 200:
        assert hooks
        charges = [await charge_of(gateway, each.headers["x-request-id"]) for each in (before, after)]
        assert charges[1] == 3 * charges[0]
    assert await charges_of(gateway) == 3 + (status == 200)  # what was refused has no line, and no charge of nothing
    assert await gateway.store.wallet.verify("tester") == []
    assert (await gateway.store.accounts.get("tester")).holds == 0  # type: ignore[union-attr]


async def test_a_reload_changes_price_and_models_of_the_next_request(
    gateway: Running, upstream: FakeUpstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token, hooks = await gateway.token(), counted_hooks(monkeypatch)
    charges = []
    async with FileReloader(gateway.gateway, tmp_path / "gateway.yaml") as reloader:
        for price in (1, 5):
            (tmp_path / "gateway.yaml").write_text(document(upstream.base_url, price=price))
            assert load(tmp_path / "gateway.yaml").config.models
            assert await reloader.run_once()
            for _ in range(3):
                hooks.clear()
                charges.append(await charge_of(gateway, (await gateway.ask(token)).headers["x-request-id"]))
            assert hooks == []
        without = json.loads(document(upstream.base_url))
        del without["models"]["words"], without["models"]["helped"], without["aliases"]
        (tmp_path / "gateway.yaml").write_text(json.dumps(without))
        assert await reloader.run_once()
        assert (await gateway.ask(token)).status == 404
    assert charges[0] == charges[2] < charges[3] == charges[5]


async def test_a_day_that_is_over_ends_a_plan_with_budgets(gateway: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    token, hooks = await gateway.token(), counted_hooks(monkeypatch)
    await gateway.store.accounts.change("tester", budgets=Budgets(day=1_000_000))
    for _ in range(3):
        assert (await gateway.ask(token)).status == 200
    (entry,) = [entry for entry in gateway.gateway.chain.entries if entry.name == "quota"]
    assert isinstance(entry.plugin, Quota)
    hooks.clear()
    monkeypatch.setattr(entry.plugin.calendar, "today", lambda: (0.0, 1.0))
    assert (await gateway.ask(token)).status == 200
    assert "Quota" in hooks


@pytest.mark.parametrize("sharded", [False, True])
async def test_there_are_plans_unless_the_store_is_sharded(
    gateway: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sharded: bool
) -> None:
    monkeypatch.setattr(gateway.store.client, "sharded", sharded)
    chain = build(load(tmp_path / "gateway.yaml"))
    await chain.start(gateway.gateway.services)
    await chain.stop()
    assert (chain.plans is None) == sharded


async def test_plans_are_kept_up_to_a_bound(gateway: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.chain.plan.MOST", 2)
    tokens = [await gateway.token(f"tester{number}") for number in range(4)]
    for token in tokens * 2:
        assert (await gateway.ask(token)).status == 200
    plans = gateway.gateway.chain.plans
    assert plans is not None
    assert len(plans) == 2
    for model in ("words", "tiered", "free") * 2:  # of one token, too
        assert (await gateway.ask(tokens[0], model=model)).status == 200
        assert 0 < len(plans) <= 2
        assert sum(len(kept) for _, kept in plans._by_credential.values()) == len(plans)


class Stamps(Plugin):
    """An author's plugin without `prepare`."""

    async def on_request(self, exchange: Exchange) -> Reply | None:
        exchange.response_headers["x-stamp"] = "stamped"
        return None


class Counts(Plugin):
    """An author's plugin with `prepare`, which counts each request and each end of one."""

    counted: ClassVar[list[str]] = []

    async def on_request(self, exchange: Exchange) -> Reply | None:
        self.counted.append(f"hook {exchange.id}")
        return None

    def prepare(self, plan: Plan) -> PlanPart | None:
        return CountsPart()


class CountsPart(PlanPart):
    def begin(self, exchange: Exchange) -> None:
        Counts.counted.append(f"plan {exchange.id}")


@pytest.mark.parametrize("without", range(len(CHAIN) + 1))
@pytest.mark.parametrize("prepared", [0, 2, 3, len(CHAIN)])
async def test_plugins_with_and_without_prepare_are_mixed_in_any_order(
    upstream: FakeUpstream, place: Place, without: int, prepared: int
) -> None:
    chain = list(CHAIN)
    chain.insert(prepared, f"{__name__}:Counts")
    chain.insert(without, f"{__name__}:Stamps")
    Counts.counted.clear()
    async with running(document(upstream.base_url, tuple(chain)), *place) as gateway:
        token = await gateway.token()
        answers = [await gateway.ask(token) for _ in range(3)]
        assert [(each.status, each.headers["x-stamp"]) for each in answers] == [(200, "stamped")] * 3
        charges = {await charge_of(gateway, each.headers["x-request-id"]) for each in answers}
        assert len(charges) == 1 and charges != {0}
        assert await gateway.store.wallet.verify("tester") == []
    kinds, ids = zip(*(each.split(" ") for each in Counts.counted), strict=True)
    assert list(ids) == [each.headers["x-request-id"] for each in answers], "each was counted once"
    # Below `auth`, what is above the plugin without `prepare` is of the plan.
    assert ("plan" in kinds) == (prepared < without and without > 2)
