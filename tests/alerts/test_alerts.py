"""Events and their queue: each is noted once a window, however many notice it, and stays until it was accepted."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from gateway.alerts import alerts as module
from gateway.alerts import event
from gateway.alerts.alerts import Alerts
from gateway.alerts.event import KEPT, LATE_MS, DueEvent, EventClaim, Outbox
from gateway.base.ids import now_ms
from gateway.config.schema import AlertKind, AlertReceiver, AlertSettings
from gateway.store.accounts import Accounts
from gateway.store.channels import AccountCoolDown, Channels, ChannelStatus, Condition
from gateway.store.client.client import Client
from tests.patience import PATIENCE_S
from tests.store.cluster import cluster

# What is noted and what is not: each event once a window, however often and by how many processes it is noticed.
SETTINGS = AlertSettings("http://127.0.0.1:9/", low_balance=Decimal(5))
HEALTHY = ChannelStatus(Condition.HEALTHY, 0)
DOWN = ChannelStatus(Condition.COOLING, 1000, firm=True)
SOFT = ChannelStatus(Condition.COOLING, 1000)
PROBING = ChannelStatus(Condition.COOLING, 0, firm=True)
DISABLED = ChannelStatus(Condition.DISABLED, 0, firm=True)


def alerts_of(client: Client, settings: AlertSettings | None = SETTINGS) -> Alerts:
    made = Alerts(client, Channels(client), settings)
    made.up_after_s = 0.0
    return made


async def written(*processes: Alerts) -> None:
    for alerts in processes:
        while alerts.arrived.is_set():
            await alerts.write()


async def sent(client: Client) -> list[dict[str, Any]]:
    """Return the queued events, in their order."""
    entries = [entry for entry, _ in await Outbox(client).pending(100)]
    return [msgspec.json.decode(entry.body) for entry in sorted(entries, key=lambda entry: entry.id)]


async def shares(client: Client) -> list[int]:
    return [event["data"]["percent"] for event in await sent(client)]


async def test_a_budget_is_an_event_at_50_80_and_100_percent(client: Client) -> None:
    alerts, end = alerts_of(client), now_ms() + 60_000
    for used in range(0, 130, 1):
        alerts.budget("alice", "", "month", used, 100, ends_at_ms=end)
        await written(alerts)
    assert await shares(client) == [50, 80, 100]
    first = (await sent(client))[0]
    assert first["type"] == "budget.reached"
    assert first["data"] == {
        "message": "the budget `month` of account alice has reached 50 %: 0.00005 of 0.0001",
        "account": "alice",
        "token": None,
        "window": "month",
        "percent": 50,
        "used": 50,
        "limit": 100,
        "unit": "micros",
        "ends_at": first["data"]["ends_at"],
    }


async def test_a_jump_over_a_share_is_one_event(client: Client) -> None:
    alerts = alerts_of(client)
    alerts.budget("alice", "alice-1a2b3c4d", "requests", 99, 100)
    alerts.budget("alice", "alice-1a2b3c4d", "requests", 101, 100)
    await written(alerts)
    assert await shares(client) == [80, 100]
    assert (await sent(client))[0]["data"]["message"] == (
        "the budget `requests` of token alice-1a2b3c4d of account alice has reached 80 %: 99 of 100"
    )


async def test_each_owner_window_limit_and_period_counts_by_itself(client: Client) -> None:
    alerts, end = alerts_of(client), now_ms() + 60_000
    for _ in range(3):
        alerts.budget("alice", "", "day", 60, 100, ends_at_ms=end)
        alerts.budget("alice", "", "day", 60, 100, ends_at_ms=end + 1)
        alerts.budget("alice", "", "day", 60, 110, ends_at_ms=end)
        alerts.budget("alice", "", "total", 60, 100)
        alerts.budget("alice", "alice-1", "day", 60, 100, ends_at_ms=end)
        alerts.budget("bob", "", "day", 60, 100, ends_at_ms=end)
    await written(alerts)
    assert await shares(client) == [50] * 6


async def test_several_processes_that_notice_the_same_are_one_event(client: Client) -> None:
    processes = [alerts_of(client) for _ in range(4)]
    for alerts in processes:
        alerts.budget("alice", "", "day", 60, 100, ends_at_ms=now_ms() // 10**6 * 10**6 + 10**6)
        alerts.balance("alice", 4_999_999)
        alerts.channel_states({"a": DOWN})
        alerts.credential_refused("a", 0, 2)
    await asyncio.gather(*(written(alerts) for alerts in processes))
    types = sorted(event["type"] for event in await sent(client))
    assert types == ["balance.low", "budget.reached", "channel.down", "credential.refused"]


async def test_the_claim_of_a_window_is_gone_after_its_end(client: Client) -> None:
    alerts = alerts_of(client)
    alerts.budget("alice", "", "day", 60, 100, ends_at_ms=now_ms() - 60_000)
    alerts.credential_refused("a", 0, 1)
    await written(alerts)
    names = [key async for key in client.keys("gw:{alert-events}:*:*")]
    assert len(names) == 2
    for name in names:
        assert 0 < await client.call("PTTL", name) <= LATE_MS


async def test_a_recovery_is_noticed_by_a_process_that_never_saw_the_account_low(client: Client) -> None:
    one, other = alerts_of(client), alerts_of(client)
    one.balance("alice", 1)
    await written(one)
    other.balance("alice", 9_000_000)
    await written(other)
    other.balance("alice", 1)
    await written(other)
    assert len(await sent(client)) == 2


async def test_a_channel_is_down_once_and_up_once(client: Client) -> None:
    alerts = alerts_of(client)
    for status in (HEALTHY, SOFT, HEALTHY, DOWN, DOWN, PROBING, DOWN, DISABLED, PROBING, HEALTHY, HEALTHY, SOFT, DOWN):
        alerts.channel_states({"a": status, "b": HEALTHY})
        await written(alerts)
    assert [(event["type"], event["data"]["channel"]) for event in await sent(client)] == [
        ("channel.down", "a"),
        ("channel.up", "a"),
        ("channel.down", "a"),
    ]


async def test_a_channel_that_fails_again_and_again_is_down_once(client: Client) -> None:
    alerts = alerts_of(client)
    alerts.up_after_s = 1000
    for status in (HEALTHY, DOWN, HEALTHY, DOWN, HEALTHY):
        alerts.channel_states({"a": status})
    await written(alerts)
    assert [event["type"] for event in await sent(client)] == ["channel.down"]


async def test_a_process_that_starts_later_says_that_a_channel_is_up_again(client: Client) -> None:
    one, other = alerts_of(client), alerts_of(client)
    one.channel_states({"a": DOWN})
    await written(one)
    other.channel_states({"a": HEALTHY, "b": HEALTHY})
    await written(other)
    assert [event["type"] for event in await sent(client)] == ["channel.down", "channel.up"]


async def test_only_the_chosen_kinds_are_noted(client: Client) -> None:
    calls: dict[AlertKind, Callable[[Alerts], None]] = {
        "budget": lambda alerts: alerts.budget("alice", "", "day", 60, 100),
        "low_balance": lambda alerts: alerts.balance("alice", 1),
        "channel": lambda alerts: alerts.channel_states({"a": DOWN}),
        "credential": lambda alerts: alerts.credential_refused("a", 0, 1),
    }
    for kind, call in calls.items():
        for settings, noted in (
            (AlertSettings("http://h/", events=(kind,), low_balance=Decimal(5)), True),
            (AlertSettings("http://h/", events=("store",), low_balance=Decimal(5)), False),
            (None, False),
        ):
            alerts = alerts_of(client, settings)
            call(alerts)
            assert alerts.arrived.is_set() is noted, (kind, settings)
    alerts_of(client, AlertSettings("http://h/")).balance("alice", -1)


async def test_more_events_than_may_wait_take_bounded_memory_and_are_counted(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_WAITING", most := 1000)
    alerts = alerts_of(client)
    dropped = 0

    def count() -> None:
        nonlocal dropped
        dropped += 1

    alerts.dropped = count
    for number in range(most + 10_000):
        if number == most:
            tracemalloc.start()
        alerts.balance(f"account{number}", 1)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert dropped == 10_000
    assert size < 1024 * 1024, "what finds no room is not kept"
    with capture_logs() as lines:
        await alerts.write()
    assert [(line["event"], line["count"]) for line in lines] == [("alerts_dropped", dropped)]
    await written(alerts)
    alerts.balance(f"account{most + 9999}", 1)
    assert alerts.arrived.is_set(), "what was dropped is noticed again"


async def test_a_recovery_that_finds_no_room_is_noticed_again(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    alerts = alerts_of(client)
    alerts.balance("alice", 1)
    alerts.channel_states({"a": DOWN})
    await written(alerts)
    with monkeypatch.context() as full:
        full.setattr(module, "MAX_WAITING", 0)
        alerts.balance("alice", 9_000_000)
        alerts.channel_states({"a": HEALTHY})
    await written(alerts)
    alerts.balance("alice", 9_000_000)
    alerts.channel_states({"a": HEALTHY})
    await written(alerts)
    alerts.balance("alice", 1)
    await written(alerts)
    types = [event["type"] for event in await sent(client)]
    assert types == ["balance.low", "channel.down", "channel.up", "balance.low"]


async def test_a_full_queue_drops_and_logs(client: Client) -> None:
    alerts = alerts_of(client)
    alerts._outbox = Outbox(client, most=2)
    for number in range(5):
        alerts.balance(f"account{number}", 1)
    with capture_logs() as lines:
        await written(alerts)
    assert len(await sent(client)) == 2
    assert [line["event"] for line in lines] == ["alerts_dropped"] * 3


async def test_each_receiver_gets_its_kinds_of_events_of_its_groups(client: Client) -> None:
    await Accounts(client).create("retail1", "retail", external_id="cus-1")
    await Accounts(client).create("other1", "trial")
    others = {
        "shop": AlertReceiver("http://127.0.0.1:9/", ("low_balance", "channel"), ("retail",)),
        "all": AlertReceiver("http://127.0.0.1:9/", ("token",)),
    }
    alerts = Alerts(
        client, Channels(client), AlertSettings("http://127.0.0.1:9/", low_balance=Decimal(5), others=others)
    )
    alerts.balance("retail1", 1)
    alerts.balance("other1", 1)
    alerts.channel_states({"a": DOWN})
    await alerts.write()
    for happened in ("created", "created", "deleted"):
        made = event.event(f"token.{happened}", "", account="retail1", token="retail1-x")
        await alerts.tell(made, f"tokens:retail1-x:{happened}")
    await alerts.tell(event.event("account.closed", "", account="retail1"), "accounts:retail1:closed")
    got = {
        name: [(entry.type, json.loads(entry.body)["data"]) for entry, _ in await Outbox(client, name).pending(9)]
        for name in ("", "shop", "all")
    }
    assert sorted(kind for kind, _ in got[""]) == ["balance.low", "balance.low", "channel.down"]
    ((kind, data),) = got["shop"]
    assert (kind, data["account"], data["group"], data["external_id"]) == ("balance.low", "retail1", "retail", "cus-1")
    assert [(kind, data["token"]) for kind, data in got["all"]] == [
        ("token.created", "retail1-x"),
        ("token.deleted", "retail1-x"),
    ]


# The queue of events: each counts once a window, is sent by one process at a time, and stays until it was accepted.
HOUR_MS = 3_600_000


def reach(key: str = "budget:a:50", window_ms: int = HOUR_MS) -> EventClaim:
    return EventClaim(key, event.event("budget.reached", "half", account="alice"), window_ms)


def down(channel: str = "a") -> EventClaim:
    return EventClaim(f"channel:{channel}", event.event("channel.down", "down", channel=channel), HOUR_MS)


def up(channel: str = "a") -> EventClaim:
    return EventClaim(f"channel:{channel}", event.event("channel.up", "up", channel=channel))


async def taken(outbox: Outbox, lease_ms: int = 10_000, count: int = 8) -> list[DueEvent]:
    _, due = await outbox.take(count, lease_ms)
    return due


async def types(outbox: Outbox) -> list[str]:
    return [entry.type for entry, _ in await outbox.pending(100)]


async def test_it_is_an_event_again_when_its_window_is_over(client: Client) -> None:
    outbox = Outbox(client)
    for _ in range(2):
        await outbox.claim(reach(window_ms=100))
    assert len(await types(outbox)) == 1
    await asyncio.sleep(0.15)
    await outbox.claim(reach(window_ms=100))
    assert len(await types(outbox)) == 2


async def test_one_process_at_a_time_has_an_event_and_another_one_when_it_did_not_report(client: Client) -> None:
    outbox = Outbox(client)
    await outbox.claim(reach())
    (first,) = await taken(outbox, lease_ms=150)
    assert await outbox.take(8, 10_000) == (1, [])
    await asyncio.sleep(0.2)
    assert await taken(outbox) == [first]


async def test_several_processes_share_what_is_due(client: Client) -> None:
    outbox = Outbox(client)
    for number in range(20):
        await outbox.claim(reach(str(number)))
    shares = await asyncio.gather(*(taken(outbox) for _ in range(3)))
    assert [len(share) for share in shares] == [8, 8, 4]
    assert len({each.entry.id for share in shares for each in share}) == 20


async def test_an_event_that_failed_is_due_after_its_pause(client: Client) -> None:
    outbox = Outbox(client)
    await outbox.claim(reach())
    (first,) = await taken(outbox)
    await outbox.report(first, msgspec.structs.replace(first.entry, attempts=1, error="it answered 500"), 0.1)
    assert await taken(outbox) == []
    await asyncio.sleep(0.15)
    (again,) = await taken(outbox)
    assert (again.entry.id, again.entry.attempts, again.entry.error) == (first.entry.id, 1, "it answered 500")
    await outbox.report(again, msgspec.structs.replace(again.entry, attempts=2, error=""))
    (ended,) = await outbox.ended()
    assert (await types(outbox), ended.error, ended.attempts) == ([], "", 2)
    assert ended.ended_ms >= ended.created_ms


async def test_a_record_of_another_version_is_removed_by_its_own_bytes(client: Client) -> None:
    outbox = Outbox(client)
    await outbox.claim(reach())
    (first,) = await taken(outbox)
    later = first.record[:-1] + b',"field":"of a later version"}'
    await client.call("ZREM", "gw:{alert-events}:queue", first.record)
    await client.call("ZADD", "gw:{alert-events}:queue", 0, later)
    (read,) = await taken(outbox)
    await outbox.report(read, read.entry)
    assert await types(outbox) == []


async def test_the_last_that_ended_are_kept(client: Client) -> None:
    outbox = Outbox(client)
    for number in range(KEPT + 5):
        await outbox.claim(reach(f"budget:{number}"))
        (last,) = await taken(outbox)
        await outbox.report(last, msgspec.structs.replace(last.entry, error="it answered 500"))
    assert len(await outbox.ended()) == KEPT
    assert (await outbox.ended())[0].id == last.entry.id
    assert await types(outbox) == []


async def test_a_full_queue_counts_nothing_so_that_it_may_be_noticed_again(client: Client) -> None:
    outbox = Outbox(client, most=2)
    assert await outbox.claim(reach("budget:a"))
    assert await outbox.claim(reach("budget:b"))
    assert not await outbox.claim(reach("budget:c"))
    (first, _) = await taken(outbox)
    await outbox.report(first, first.entry)
    assert await outbox.claim(reach("budget:c"))
    assert len(await types(outbox)) == 2


async def test_receivers_have_queues_of_their_own(client: Client) -> None:
    first, shop = Outbox(client, most=1), Outbox(client, "shop", most=1)
    assert await first.claim(reach("budget:a"), ["", "shop"])
    ((sent,), (also,)) = await taken(first), await taken(shop)
    assert sent.entry == also.entry, "one event, with one id"
    await first.report(sent, sent.entry)
    assert await first.claim(reach("budget:b"), ["", "shop"]), "it is queued where there is room"
    assert (len(await types(first)), len(await types(shop))) == (1, 1)
    assert not await first.claim(reach("budget:c"), ["", "shop"])
    assert not await first.claim(reach("budget:c"), ["", "shop"]), "it was not counted"
    assert await client.call("PTTL", "gw:{alert-events}:queue:shop") > 0, "nobody may ever read it"


async def test_a_condition_ends_also_where_the_queue_is_full(client: Client) -> None:
    outbox = Outbox(client, most=1)
    assert await outbox.claim(down())
    assert not await outbox.claim(up())
    (first,) = await taken(outbox)
    await outbox.report(first, first.entry)
    assert await outbox.claim(down())
    assert await types(outbox) == ["channel.down"]


async def test_a_cluster_keeps_all_of_it_in_one_slot(tmp_path: Path) -> None:
    with cluster(tmp_path) as three:
        client = Client.connect(three.url, timeout_s=PATIENCE_S)
        outbox = Outbox(client)
        for claim in (
            reach(),
            down(),
            up(),
            EventClaim("low:a", event.event("balance.low", "low", account="a"), HOUR_MS),
        ):
            assert await outbox.claim(claim)
        due = await taken(outbox)
        assert len(due) == 4
        for each in due[:2]:
            await outbox.report(each, msgspec.structs.replace(each.entry, error="it answered 500"))
        await outbox.report(due[2], msgspec.structs.replace(due[2].entry, error="it answered 500"), 60)
        assert (len(await outbox.pending(9)), len(await outbox.ended())) == (2, 2)
        await client.close()


async def test_a_channel_that_fails_for_some_accounts_is_an_event_once_an_hour(client: Client) -> None:
    failing = AccountCoolDown(1000, firm=True, failing=True)
    some = ChannelStatus(
        Condition.HEALTHY, 0, accounts={"alice": failing, "bobby": AccountCoolDown()}, error="upstream_error"
    )
    one, other = alerts_of(client), alerts_of(client)
    once = msgspec.structs.replace(some, accounts={"alice": AccountCoolDown(1000, failing=True)})  # by one 429, say
    for status in (HEALTHY, once, some, some, HEALTHY, some):
        one.channel_states({"a": status})
        other.channel_states({"a": status})
    await written(one, other)
    (event,) = await sent(client)
    assert (event["type"], event["data"]["channel"], event["data"]["accounts"]) == ("channel.failing", "a", 1)
    assert event["data"]["message"] == "channel a fails for 1 account: upstream_error"
