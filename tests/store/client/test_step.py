"""Steps run together as they would one by one: in order, each with its own keys, until one stops or fails."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from gateway.base.errors import StoreAway, StoreError
from gateway.store.client.client import Client, Script
from gateway.store.client.protocol import Demoted
from gateway.store.client.steps import FAILED, RAN, STOPPED, Step, error_in, in_one_slot, run_steps
from tests.store.cluster import cluster

COUNT = Script("count", "return redis.call('INCRBY', KEYS[1], ARGV[1])")
STOP = Script("stop", "return { 'no', ARGV[1] }, true")
FAIL = Script("fail", "redis.call('SET', KEYS[1], 'before')\nerror({ err = ARGV[1] })")
SEEN = Script("seen", "return { #KEYS, #ARGV, KEYS[#KEYS], ARGV[#ARGV] }")
NOTHING = Script("nothing", "return nil -- a comment at the end")
WRONG = Script("wrong", "return redis.pcall('INCR', KEYS[1])")
CRASH = Script("crash", "return nothing.here")


def count(key: str, by: int = 1) -> Step:
    return Step(COUNT, (key,), (by,))


async def test_steps_run_in_order_and_each_reply_is_its_own(client: Client) -> None:
    steps = [count("gw:{a}:one", 2), count("gw:{a}:two", 3), count("gw:{a}:one", 5)]
    assert await run_steps(client, steps) == [[RAN, value] for value in (2, 3, 7)]
    assert all(step.may_have_run for step in steps)


async def test_a_step_sees_its_own_keys_and_arguments(client: Client) -> None:
    steps = [
        Step(SEEN, ("gw:{a}:x", "gw:{a}:y"), ("p", "q", 7)),
        Step(SEEN, ("gw:{a}:z",)),
        Step(SEEN, ("gw:{a}:w",), ("r",)),
    ]
    replies = [value for _, value in await run_steps(client, steps)]
    assert replies == [[2, 3, b"gw:{a}:y", b"7"], [1, 0, b"gw:{a}:z"], [1, 1, b"gw:{a}:w", b"r"]]


async def test_what_is_after_a_step_that_stops_does_not_run(client: Client) -> None:
    steps = [count("gw:{a}:one"), Step(STOP, ("gw:{a}:one",), ("why",)), count("gw:{a}:two")]
    replies = await run_steps(client, steps)
    assert replies == [[RAN, 1], [STOPPED, [b"no", b"why"]]]
    assert [step.may_have_run for step in steps] == [True, True, False]
    assert await client.call("GET", "gw:{a}:two") is None


@pytest.mark.parametrize(
    ("error", "kind"),
    [("ERR of our own", StoreError), ("OOM command not allowed", StoreAway), ("MISCONF the disk is full", StoreAway)],
)
async def test_a_step_that_fails_ends_the_script_and_undoes_nothing(
    client: Client, error: str, kind: type[Exception]
) -> None:
    steps = [count("gw:{a}:one"), Step(FAIL, ("gw:{a}:here",), (error,)), count("gw:{a}:two")]
    first, (status, text) = await run_steps(client, steps)
    assert (first, status, type(error_in(status, text))) == ([RAN, 1], FAILED, kind)
    assert [step.may_have_run for step in steps] == [True, True, False]
    assert await client.call("MGET", "gw:{a}:one", "gw:{a}:here", "gw:{a}:two") == [b"1", b"before", None]


async def test_errors_of_lua_and_of_commands_are_errors_of_the_step(client: Client) -> None:
    await client.call("SET", "gw:{a}:text", "no number")
    (nothing,) = await run_steps(client, [Step(NOTHING, ("gw:{a}:text",))])
    assert nothing == [RAN, None]
    for step in (Step(WRONG, ("gw:{a}:text",)), Step(CRASH, ("gw:{a}:text",)), count("gw:{a}:text")):
        ((status, value),) = await run_steps(client, [step])
        assert isinstance(error_in(status, value), StoreError)


async def test_a_replica_ends_the_whole_script_so_that_the_primary_is_looked_for(client: Client) -> None:
    with pytest.raises(Demoted):
        await run_steps(
            client, [Step(FAIL, ("gw:{a}:here",), ("READONLY You can't write against a read only replica.",))]
        )


async def test_after_a_lost_reply_each_step_may_have_run(tmp_path: Path) -> None:
    away = Client.connect(f"unix://{tmp_path}/nothing")
    steps = [count("gw:{a}:one"), count("gw:{a}:two")]
    with pytest.raises(StoreAway):
        await run_steps(away, steps)
    assert all(step.may_have_run for step in steps)
    await away.close()


@pytest.fixture(scope="module")
def cluster_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with cluster(tmp_path_factory.mktemp("cluster")) as masters:
        yield masters.url


async def test_a_cluster_runs_the_steps_of_one_slot_together(cluster_url: str) -> None:
    client = Client.connect(cluster_url)
    steps = [count("gw:{a}:one"), count("gw:{a}:two"), count("gw:{b}:one"), count("untagged"), count("gw:{b}:one")]
    sizes, rest = [], list(steps)
    while rest:
        size = in_one_slot(client, rest)
        sizes.append(size)
        assert [value for _, value in await run_steps(client, rest[:size])] != []
        rest = rest[size:]
    assert sizes == [2, 1, 1, 1]
    assert await client.call("GET", "gw:{b}:one") == b"2"
    await client.close()


async def test_any_other_store_runs_all_together(client: Client) -> None:
    steps: Sequence[Step] = [count("gw:{a}:one"), count("gw:{b}:one"), count("untagged")]
    assert in_one_slot(client, steps) == 3
    assert [value for _, value in await run_steps(client, steps)] == [1, 1, 1]
