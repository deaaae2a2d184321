"""Bodies of requests: their memory is bounded, shared and given back, and large ones take turns."""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import Callable, Generator
from contextlib import suppress

import msgspec
import pytest

from gateway import Exchange, Plugin
from gateway.base.errors import Refused
from gateway.chat.request import Body, BodyRules, check, check_in_steps
from gateway.fake_upstream import FakeUpstream
from gateway.server.body import SMALL, SMALL_SHARE, BodyBudget, BodyShare, LargeBodies
from gateway.testing import running
from tests.patience import PATIENCE_S, wait_until
from tests.place import Place
from tests.whole.conftest import CHAIN, configuration
from tests.whole.raw import chat, read_answer

# The memory for bodies: what has arrived counts, each owner has as much as is still free, and everything is given back.
MIB = 1024 * 1024


def filled(budget: BodyBudget, owner: str, size: int) -> list[BodyShare]:
    """Return the bodies of 1 MiB that an owner can hold at once, `size` MiB at most."""
    bodies = []
    for _ in range(size):
        body = BodyShare(budget, owner)
        try:
            body.grow(MIB)
        except Refused:
            break
        bodies.append(body)
    return bodies


def refusal(act: Callable[[int], None], size: int) -> tuple[int, str]:
    with pytest.raises(Refused) as refused:
        act(size)
    return refused.value.status, refused.value.code


def test_a_declared_body_takes_nothing_before_it_comes() -> None:
    budget = BodyBudget(8 * MIB)
    for _ in range(100):
        BodyShare(budget, "one").check(8 * MIB)
    assert budget.reserved == 0


def test_one_owner_takes_half_and_each_other_as_much_as_is_still_free() -> None:
    budget = BodyBudget(64 * MIB)
    taken = [len(filled(budget, f"owner{number}", 64)) for number in range(5)]
    assert taken == [32, 16, 8, 4, 2]
    late = BodyShare(budget, "late")
    late.grow(MIB)


def test_owners_that_send_at_the_same_time_leave_the_share_of_one_more() -> None:
    budget, bodies = BodyBudget(50 * MIB), []
    for turn in range(200):
        bodies += filled(budget, f"owner{turn % 4}", 1)
    assert budget.reserved == 40 * MIB
    assert len(bodies) == 40


def test_the_first_body_of_an_owner_is_limited_by_the_budget_alone() -> None:
    budget = BodyBudget(10 * MIB)
    first, second = BodyShare(budget, "one"), BodyShare(budget, "one")
    first.grow(MIB)
    second.grow(MIB)
    first.grow(7 * MIB)
    assert refusal(second.grow, 2 * MIB) == (429, "too_many_concurrent")
    assert refusal(second.check, 2 * MIB) == (429, "too_many_concurrent")
    assert refusal(first.grow, 10 * MIB) == (503, "service_unavailable")
    assert budget.reserved == 8 * MIB
    first.release()
    second.grow(10 * MIB)
    second.release()
    second.release()
    assert budget.reserved == 0


def test_a_small_body_is_read_beside_a_full_budget_and_leaves_its_owner_one_large_body() -> None:
    budget = BodyBudget(MIB)
    full, small, large = BodyShare(budget, "other"), BodyShare(budget, "one"), BodyShare(budget, "one")
    full.grow(MIB)
    small.grow(SMALL_SHARE)
    assert refusal(large.grow, SMALL_SHARE + 1) == (503, "service_unavailable")
    full.release()
    large.grow(MIB - SMALL_SHARE)


def test_whatever_happens_the_budget_ends_empty() -> None:
    choose = random.Random(4711)
    budget = BodyBudget(MIB)
    bodies: list[BodyShare] = []
    for _ in range(5000):
        if not bodies or choose.random() < 0.3:
            bodies.append(BodyShare(budget, f"owner{choose.randrange(5)}"))
        body = choose.choice(bodies)
        if choose.random() < 0.2:
            bodies.remove(body)
            body.release()
            continue
        try:
            body.grow(choose.randrange(MIB // 2))
        except Refused:
            assert body.held <= MIB
        assert budget.reserved == sum(each.held for each in bodies)
    for body in bodies:
        body.release()
    assert (budget.reserved, budget.owners) == (0, {})


# The body of a request: what its readings hold of the budget is given back.
class Impatient(Plugin):
    """Gives up the first reading of a body."""

    async def on_request(self, exchange: Exchange) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(exchange.body(), 0.3)
        READ.set()


READ = asyncio.Event()


async def test_a_reading_that_was_given_up_holds_nothing_after_the_next_one(place: Place) -> None:
    chain = CHAIN.replace("  - use: rate-limit", f"  - use: {__name__}:Impatient\n  - use: rate-limit")
    async with (
        FakeUpstream(pace_s=0) as upstream,
        running(configuration(upstream.base_url, chain=chain), *place) as gateway,
    ):
        request = chat(await gateway.token())
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(request[:-20])
        await wait_until(lambda: gateway.gateway.budget.reserved > 0)
        await asyncio.wait_for(READ.wait(), PATIENCE_S)
        writer.write(request[-20:])
        assert (await asyncio.wait_for(read_answer(reader), PATIENCE_S)).status == 400
        writer.close()
        await wait_until(lambda: not gateway.gateway.connections.open and not gateway.gateway.budget.reserved)


# Several large bodies at once: their checks are done in parts, accounts take turns, and other work goes first.
LARGE = msgspec.json.encode(
    {"model": "m", "stream": True, "messages": [{"role": "user", "content": "x" * 40}] * 10_000, "user": "x" * SMALL}
)
RULES = BodyRules()


async def test_the_event_loop_turns_between_the_parts_of_a_check() -> None:
    bodies, turned = LargeBodies(), 0
    checking = asyncio.create_task(bodies.check(check_in_steps(LARGE, RULES), "one"))
    while not checking.done():
        await asyncio.sleep(0)
        turned += 1
    assert await checking == check(LARGE, RULES)
    assert turned > 3


async def test_a_body_does_not_wait_for_all_those_of_another_account() -> None:
    done = list[str]()

    def parts(name: str) -> Generator[None, None, Body]:
        for _ in range(4):
            yield
        done.append(name)
        return check(LARGE, RULES)

    bodies = LargeBodies()
    first = [asyncio.create_task(bodies.check(parts("one"), "one")) for _ in range(5)]
    await asyncio.sleep(0)
    await bodies.check(parts("two"), "two")
    await asyncio.gather(*first)
    assert done.index("two") <= 1


async def test_a_checked_body_is_freed_without_the_garbage_collector() -> None:
    def bodies() -> int:
        return sum(isinstance(each, Body) for each in gc.get_objects())

    gc.collect()
    gc.disable()
    try:
        before = bodies()
        await LargeBodies().check(check_in_steps(LARGE, RULES), "one")
        await asyncio.sleep(0)  # the event loop holds the result until the turn that brought it is over
        assert bodies() == before
    finally:
        gc.enable()


async def test_a_refused_body_lets_the_next_one_be_checked() -> None:
    bodies = LargeBodies()
    with pytest.raises(Refused):
        await bodies.check(check_in_steps(b"[" * SMALL, RULES), "one")
    assert (await bodies.check(check_in_steps(LARGE, RULES), "one")).model == "m"


async def test_the_check_of_a_caller_that_left_is_given_up() -> None:
    parts = [0]

    def endless() -> Generator[None, None, Body]:
        while True:
            parts[0] += 1
            yield

    bodies = LargeBodies()
    checking = asyncio.create_task(bodies.check(endless(), "one"))
    await wait_until(lambda: parts[0] > 2)
    checking.cancel()
    await wait_until(lambda: not bodies._turns.waiting)
