"""Ids of what upstreams keep, in a real store: whose they are, how many, and for how long."""

from __future__ import annotations

import msgspec
import pytest

from gateway.operations.kept import KeptId
from gateway.store import kept_ids
from gateway.store.client.client import Client
from gateway.store.kept_ids import KeptIds

KEPT = KeptId("up", "f" * 12, "words", "resp_1", 30, True)


def named(*names: str) -> dict[str, KeptId]:
    """Return answers with these ids."""
    return {name: msgspec.structs.replace(KEPT, answer=name) for name in names}


async def test_an_id_is_known_to_its_account_alone(client: Client) -> None:
    ids = KeptIds(client)
    await ids.remember("alice", {"resp_1": KEPT, "msg_1": KEPT})
    assert await ids.find("alice", ["resp_1", "resp_2", "msg_1"]) == {"resp_1": KEPT, "msg_1": KEPT}
    for other in ("bob", "alic", "alice}", ""):
        assert await ids.find(other, ["resp_1"]) == {}
    await ids.forget("alice", "resp_1")
    assert await ids.find("alice", ["resp_1", "msg_1"]) == await ids.find("alice", ["msg_1"]) == {}


async def test_what_is_learned_later_replaces_what_was_known(client: Client) -> None:
    ids, before = KeptIds(client), KeptId("up", "f" * 12, "words", "resp_1")
    await ids.remember("alice", {"resp_1": before})
    await ids.remember("alice", {"resp_1": KEPT})
    assert await ids.find("alice", ["resp_1"]) == {"resp_1": KEPT}


async def test_the_oldest_are_forgotten_first(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_ids, "MOST", 5)
    ids = KeptIds(client)
    for number in range(9):  # within a millisecond they are in the order of their names
        await ids.remember("alice", named(f"resp_{number}"))
    names = [f"resp_{number}" for number in range(9)]
    assert list(await ids.find("alice", names)) == names[4:]
    assert [await client.call(call, key) for call, key in _counts()] == [5, 5]


async def test_none_is_known_for_longer_than_it_is_kept(client: Client) -> None:
    ids, order = KeptIds(client), "gw:{alice}:kept:order"
    await ids.remember("alice", named("resp_1", "resp_2"))
    seconds, _ = await client.call("TIME")
    for name, ago_s in (("resp_1", kept_ids.KEPT_S + 60), ("resp_2", kept_ids.KEPT_S - 60)):
        await client.call("ZADD", order, (int(seconds) - ago_s) * 1000, name)
    await ids.remember("alice", named("resp_3"))
    assert list(await ids.find("alice", ["resp_1", "resp_2", "resp_3"])) == ["resp_2", "resp_3"]
    for key in ("gw:{alice}:kept", order):
        assert kept_ids.KEPT_S - 60 < await client.call("TTL", key) <= kept_ids.KEPT_S


def _counts() -> list[tuple[str, str]]:
    return [("HLEN", "gw:{alice}:kept"), ("ZCARD", "gw:{alice}:kept:order")]
