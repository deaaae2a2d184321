"""The outbox: one process takes, nothing is removed before it is reported, what belongs together keeps its order."""

from __future__ import annotations

import asyncio
from pathlib import Path

from gateway.alerts import event
from gateway.alerts.event import KEPT, EventClaim, Outbox, OutboxEntry
from gateway.store.client.client import Client
from tests.patience import PATIENCE_S
from tests.store.cluster import cluster

HOUR_MS = 3_600_000


def reach(level: int, key: str = "budget:a", end_ms: int | None = None) -> EventClaim:
    made = event.budget_reached("alice", "", "day", level, 100, level, None)
    return EventClaim("reach", key, made, level, event.now_ms() + HOUR_MS if end_ms is None else end_ms)


def down(channel: str = "a") -> EventClaim:
    return EventClaim("begin", f"channel:{channel}", event.channel_down(channel), channel)


def up(channel: str = "a") -> EventClaim:
    return EventClaim("end", f"channel:{channel}", event.channel_up(channel))


async def taken(
    outbox: Outbox, sender: str = "one", lease_ms: int = 10_000, count: int = 8
) -> list[OutboxEntry] | None:
    return (await outbox.take(sender, lease_ms, count)).entries


async def types(outbox: Outbox) -> list[str]:
    return [entry.type for entry, _ in await outbox.pending(100)]


async def test_levels_only_rise(client: Client) -> None:
    outbox = Outbox(client)
    for level in (50, 50, 100, 80, 100):
        assert await outbox.claim(reach(level))
    assert [entry.body.count('"percent":50') for entry, _ in await outbox.pending(9)].count(1) == 1
    assert len(await outbox.pending(9)) == 2


async def test_of_many_claims_at_once_one_is_an_event(client: Client) -> None:
    outbox = Outbox(client)
    await asyncio.gather(*(outbox.claim(reach(50)) for _ in range(200)), *(outbox.claim(down()) for _ in range(200)))
    assert sorted(await types(outbox)) == ["budget.reached", "channel.down"]


async def test_an_end_without_a_beginning_is_nothing(client: Client) -> None:
    outbox = Outbox(client)
    assert await outbox.claim(up())
    assert await types(outbox) == []


async def test_the_event_of_an_end_is_not_taken_before_that_of_the_beginning_was_sent(client: Client) -> None:
    outbox = Outbox(client)
    await outbox.claim(down())
    await outbox.claim(up())
    (first,) = await taken(outbox) or []
    assert first.type == "channel.down"
    await outbox.report(first, "again", 60_000)
    assert await taken(outbox) == []
    await outbox.report(first, "sent")
    await client.call("ZADD", "gw:{alert-events}:due", 0, (await outbox.pending(1))[0][0].id)
    (second,) = await taken(outbox) or []
    assert second.type == "channel.up"


async def test_one_process_at_a_time_takes_and_another_one_when_its_lease_is_over(client: Client) -> None:
    outbox = Outbox(client)
    await outbox.claim(reach(50))
    first = await taken(outbox, "one", lease_ms=150)
    assert first is not None
    assert len(first) == 1
    answer = await outbox.take("other", 10_000, 8)
    assert (answer.pending, answer.entries) == (1, None)
    await asyncio.sleep(0.2)
    assert await taken(outbox, "other") == first
    assert await taken(outbox, "one") is None


async def test_a_process_that_stops_makes_room_at_once_and_only_for_itself(client: Client) -> None:
    outbox = Outbox(client)
    await taken(outbox, "one")
    await outbox.release("other")
    assert await taken(outbox, "other") is None
    await outbox.release("one")
    assert await taken(outbox, "other") == []


async def test_what_is_not_due_is_not_taken(client: Client) -> None:
    outbox = Outbox(client)
    await outbox.claim(reach(50))
    (entry,) = await taken(outbox) or []
    await outbox.report(
        OutboxEntry(entry.id, entry.type, entry.body, entry.created_ms, 1, "it answered 500"), "again", 100
    )
    assert await taken(outbox) == []
    await asyncio.sleep(0.15)
    (again,) = await taken(outbox) or []
    assert (again.id, again.attempts, again.error) == (entry.id, 1, "it answered 500")


async def test_a_report_about_what_is_gone_brings_nothing_back(client: Client) -> None:
    outbox = Outbox(client)
    await outbox.claim(reach(50))
    (entry,) = await taken(outbox) or []
    await outbox.report(entry, "sent")
    for outcome in ("again", "given_up", "sent"):
        await outbox.report(entry, outcome)
    assert (await types(outbox), await outbox.given_up()) == ([], [])


async def test_the_last_that_were_given_up_are_kept(client: Client) -> None:
    outbox = Outbox(client)
    for number in range(KEPT + 5):
        await outbox.claim(reach(50, f"budget:{number}"))
        (entry,) = await taken(outbox) or []
        await outbox.report(entry, "given_up")
    assert len(await outbox.given_up()) == KEPT
    assert (await outbox.given_up())[0] == entry


async def test_a_full_outbox_counts_nothing_so_that_it_may_be_noticed_again(client: Client) -> None:
    outbox = Outbox(client, most=2)
    assert await outbox.claim(reach(50, "budget:a"))
    assert await outbox.claim(reach(50, "budget:b"))
    assert not await outbox.claim(reach(50, "budget:c"))
    (entry, _) = await taken(outbox) or []
    await outbox.report(entry, "sent")
    assert await outbox.claim(reach(50, "budget:c"))
    assert len(await types(outbox)) == 2


async def test_a_condition_ends_also_where_the_outbox_is_full(client: Client) -> None:
    outbox = Outbox(client, most=1)
    assert await outbox.claim(down())
    assert not await outbox.claim(up())
    (first,) = await taken(outbox) or []
    await outbox.report(first, "sent")
    assert await outbox.claim(down())
    assert await types(outbox) == ["channel.down"]


async def test_a_cluster_keeps_all_of_it_in_one_slot(tmp_path: Path) -> None:
    with cluster(tmp_path) as three:
        client = Client.connect(three.url, timeout_s=PATIENCE_S)
        await _use_all(client)
        await client.close()


async def _use_all(client: Client) -> None:
    outbox = Outbox(client)
    for claim in (reach(50), down(), up(), EventClaim("join", "low", event.low_balance("a", 1, 2), "a")):
        assert await outbox.claim(claim)
    for entry in await taken(outbox) or []:
        await outbox.report(entry, "given_up")
    assert await outbox.low_since(0, 9) != []
    await outbox.release("one")
