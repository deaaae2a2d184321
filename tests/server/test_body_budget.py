"""The memory for bodies: what has arrived counts, each owner has as much as is still free, and everything is given back."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from gateway.base.errors import Refused
from gateway.server.body import SMALL_SHARE, BodyBudget, BodyShare

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
    assert (budget.reserved, budget._owners) == (0, {})
