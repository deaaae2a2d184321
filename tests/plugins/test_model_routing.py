"""The choice of channels follows priorities and weights, and with `affinity` a conversation's own order."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter

import msgspec
import pytest

from gateway import Caller, Candidate, Route
from gateway.chat.request import BodyRules, check
from gateway.config.channel import Channel
from gateway.config.model import AFFINITY, Model, Serving
from gateway.config.schema import Config, Group
from gateway.store.channels import FIRST_EVENT_MS, ChannelReport
from gateway.testing import MINIMAL_BODY, PATIENT, exchange, services, started
from plugins.model_routing import ModelRouting, session_of, shuffled
from tests.place import Place

CHANNELS = {name: Channel(f"http://{name}/v1") for name in "abcd"}
SETTINGS = Config(
    store=PATIENT,
    channels=CHANNELS,
    models={
        "m": Model(
            [
                Serving("a", weight=6),
                Serving("b", weight=3),
                Serving("c", model="other", weight=1),
                Serving("d", priority=1),
            ],
            free=True,
        ),
        "only-d": Model(["d"], free=True),
    },
    groups={"default": Group(), "some": Group(models=["m"], channels=["b", "d"])},
)
TIER = [(Candidate(name, CHANNELS[name], "m"), weight) for name, weight in (("a", 6), ("b", 3), ("c", 1))]


async def routed(plugin: ModelRouting, model: str = "m", *, account: str = "acc", group: str = "default") -> list[str]:
    request = exchange({"model": model})
    request[Caller] = Caller(account, "acc-1", group)
    await plugin.on_request(request)
    return [candidate.name for candidate in request[Route].candidates]


def test_a_hundred_thousand_draws_match_the_weights() -> None:
    from plugins.model_routing import _by_chance

    draws = 100_000
    first = Counter(shuffled(TIER, _by_chance)[0].name for _ in range(draws))
    for name, share in (("a", 0.6), ("b", 0.3), ("c", 0.1)):
        assert abs(first[name] / draws - share) < 5 * (share * (1 - share) / draws) ** 0.5, first


async def test_a_draw_is_without_replacement_and_tiers_keep_their_order(place: Place) -> None:
    async with services(*place, SETTINGS) as given:
        plugin = await started(ModelRouting(), given)
        orders = {tuple(await routed(plugin)) for _ in range(300)}
        assert all(sorted(order) == ["a", "b", "c", "d"] and order[3] == "d" for order in orders)
        assert len(orders) == 6
        await plugin.stop()


STICKY = msgspec.structs.replace(
    SETTINGS, models={"m": msgspec.structs.replace(SETTINGS.models["m"], affinity=("account",))}
)


async def test_conversations_keep_their_order_and_match_the_weights(place: Place) -> None:
    async with services(*place, STICKY) as given:
        plugin = await started(ModelRouting(), given)
        orders = {account: await routed(plugin, account=account) for account in map(str, range(10_000))}
        for account, order in list(orders.items())[:50]:
            assert await routed(plugin, account=account) == order
        first = Counter(order[0] for order in orders.values())
        for name, share in (("a", 0.6), ("b", 0.3), ("c", 0.1)):
            assert abs(first[name] / 10_000 - share) < 0.03 * share + 5 * (share * (1 - share) / 10_000) ** 0.5 / 2, (
                first
            )
        await plugin.stop()


LONG = "x" * 3000
SESSIONS: list[tuple[dict[str, object], dict[str, str]]] = [
    ({"prompt_cache_key": "k"}, {}),
    ({}, {"session-id": "s"}),
    ({}, {"x-claude-code-session-id": "s"}),
    ({"user": "u"}, {}),
    ({"messages": [{"role": "user", "content": LONG}]}, {}),
    ({}, {}),
]


@pytest.mark.parametrize("place", range(len(SESSIONS)))
def test_a_conversation_is_known_by_the_first_that_its_request_has(place: int) -> None:
    def session(*places: int, account: str = "one", text: str = "") -> str:
        fields: dict[str, object] = {"model": "m"}
        headers: dict[str, str] = {}
        for index in places:
            fields |= SESSIONS[index][0]
            headers |= SESSIONS[index][1]
        if text:
            fields["messages"] = [{"role": "user", "content": LONG + text}]
        request = exchange(fields, headers=headers)
        return session_of(
            AFFINITY, request, check(msgspec.json.encode({**MINIMAL_BODY, **fields}), BodyRules()), account
        )

    alone = session(place)
    assert alone
    assert session(*range(place, len(SESSIONS))) == alone, "the first counts"
    assert session(place, account="two") != alone, "each account has its own"
    assert session(place, place) == alone
    assert (session(4, text="more") == session(4)) and session(4) != session(5), "only the beginning counts"


def test_without_anything_that_names_it_a_conversation_has_no_session() -> None:
    fields = {"model": "m", "user": "", "prompt_cache_key": None}
    body = check(msgspec.json.encode({**MINIMAL_BODY, **fields}), BodyRules())
    assert session_of(("user", "prompt_cache_key", "header:x", "prefix:2048"), exchange(fields), body, "a") == ""


def with_options(**options: object) -> Config:
    model = Model([Serving(name) for name in "abcd"], free=True)
    return msgspec.structs.replace(SETTINGS, models={"m": msgspec.structs.replace(model, **options)})


async def test_with_equal_weights_channels_with_fewer_calls_in_flight_come_first(place: Place) -> None:
    async with services(*place, with_options()) as given:
        plugin = await started(ModelRouting(), given)
        firsts = {(await routed(plugin))[0] for _ in range(100)}
        assert firsts == set("abcd"), "by chance, as long as none is busy"
        request = exchange({"model": "m"})
        request[Caller] = Caller("acc", "acc-1", "default")
        await plugin.on_request(request)
        route = request[Route]
        busy = {(await route.breaker.admit(route.candidates[index:], "r")).name for index in (0, 1)}
        for _ in range(50):
            assert set((await routed(plugin))[2:]) == busy
        await plugin.stop()


async def test_by_latency_the_unknown_come_first_then_the_quickest_and_a_tenth_explores(place: Place) -> None:
    def answers(wait_ms: int) -> ChannelReport:
        report = ChannelReport(ok=20)
        report.first[bisect_left(FIRST_EVENT_MS, wait_ms)] = 20
        return report

    async with services(*place, with_options(order="latency")) as given:
        reports = {"a": answers(900), "b": answers(100), "c": answers(5000)}
        await given.store.channels.sync("another gateway", reports)
        plugin = await started(ModelRouting(), given)
        orders = Counter([tuple(await routed(plugin)) for _ in range(1000)])
        quickest = orders[("d", "b", "a", "c")]
        assert 850 < quickest < 950
        assert len(orders) > 15
        await plugin.stop()
