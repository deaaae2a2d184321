"""The queue of events: each counts once a window, is sent by one process at a time, and stays until it was accepted."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec

from gateway.alerts import event
from gateway.alerts.event import KEPT, DueEvent, EventClaim, Outbox
from gateway.store.client.client import Client
from tests.patience import PATIENCE_S
from tests.store.cluster import cluster

HOUR_MS = 3_600_000


def reach(key: str = "budget:a:50", window_ms: int = HOUR_MS) -> EventClaim:
    return EventClaim(key, event.budget_reached("alice", "", "day", 50, 100, 50, None), window_ms)


def down(channel: str = "a") -> EventClaim:
    return EventClaim(f"channel:{channel}", event.channel_down(channel), HOUR_MS)


def up(channel: str = "a") -> EventClaim:
    return EventClaim(f"channel:{channel}", event.channel_up(channel))


async def taken(outbox: Outbox, lease_ms: int = 10_000, count: int = 8) -> list[DueEvent]:
    _, due = await outbox.take(count, lease_ms)
    return due


async def types(outbox: Outbox) -> list[str]:
    return [entry.type for entry, _ in await outbox.pending(100)]


async def test_of_many_claims_at_once_one_is_an_event(client: Client) -> None:
    outbox = Outbox(client)
    await asyncio.gather(*(outbox.claim(reach()) for _ in range(200)), *(outbox.claim(down()) for _ in range(200)))
    assert sorted(await types(outbox)) == ["budget.reached", "channel.down"]


async def test_it_is_an_event_again_when_its_window_is_over(client: Client) -> None:
    outbox = Outbox(client)
    for _ in range(2):
        await outbox.claim(reach(window_ms=100))
    assert len(await types(outbox)) == 1
    await asyncio.sleep(0.15)
    await outbox.claim(reach(window_ms=100))
    assert len(await types(outbox)) == 2


async def test_an_end_without_a_beginning_is_nothing(client: Client) -> None:
    outbox = Outbox(client)
    assert await outbox.claim(up())
    assert await types(outbox) == []


async def test_a_condition_that_ended_may_begin_again(client: Client) -> None:
    outbox = Outbox(client)
    for claim in (down(), down(), up(), up(), down()):
        assert await outbox.claim(claim)
    assert sorted(await types(outbox)) == ["channel.down", "channel.down", "channel.up"]


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
        for claim in (reach(), down(), up(), EventClaim("low:a", event.low_balance("a", 1, 2), HOUR_MS)):
            assert await outbox.claim(claim)
        due = await taken(outbox)
        assert len(due) == 4
        for each in due[:2]:
            await outbox.report(each, msgspec.structs.replace(each.entry, error="it answered 500"))
        await outbox.report(due[2], msgspec.structs.replace(due[2].entry, error="it answered 500"), 60)
        assert (len(await outbox.pending(9)), len(await outbox.ended())) == (2, 2)
        await client.close()
