"""The cache of answers is bounded, forgets, and keeps nothing that was refused, cut or too large."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway import Caller, Exchange, Outcome, Services, Usage
from gateway.domain.exchange import Attempt
from gateway.testing import FixedClock, exchange, services, started
from plugins.answer_cache import AnswerCache

EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"%b"}}]}\n\n'
DONE = b"data: [DONE]\n\n"


@pytest.fixture
async def given(store_url: str, tmp_path: Path) -> AsyncIterator[Services]:
    async with services(tmp_path, store_url) as made:
        yield made


def asked(text: str = "hi", account: str = "alice", **fields: Any) -> Exchange:
    of = exchange({"temperature": 0, "messages": [{"role": "user", "content": text}]} | fields)
    of[Caller] = Caller(account=account, token_id="t", group="default")
    return of


async def answer(
    cache: AnswerCache, of: Exchange, *chunks: bytes, outcome: Outcome = Outcome.COMPLETED, by: str = ""
) -> bool:
    """Take an exchange through the cache. Return whether it was answered from memory."""
    if (reply := await cache.on_request(of)) is not None:
        assert reply.events is not None
        assert b"".join([event async for event in reply.events]) == b"".join(chunks)
        assert (reply.usage, reply.charge) == (Usage(11, 6, "upstream"), cache.charge)
        return True
    for chunk in chunks:
        cache.on_chunk(of, chunk)
    of.attempts.append(Attempt("b", "m", error="upstream_error", usage=Usage(11, 0, "estimated")))
    of.attempts.append(Attempt("c", "m", usage=Usage(11, 6, "upstream")))
    if by:
        of.serve_by(by)
    of.outcome = outcome
    await cache.on_end(of)
    return False


async def test_an_equal_request_of_the_same_account_is_answered_until_it_expires(given: Services) -> None:
    cache, chunks = await started(AnswerCache(), given), (EVENT % b"a", DONE)
    assert not await answer(cache, asked(), *chunks)
    assert await answer(cache, asked(), *chunks)
    for other in (asked("ho"), asked(account="bob"), asked(seed=1), asked(temperature=0.5), asked(temperature=None)):
        assert not await answer(cache, other, *chunks)
    assert not await answer(cache, exchange(method="GET", path="/v1/models", body=b""))
    clock = given.clock
    assert isinstance(clock, FixedClock)
    clock.move(299)
    assert await answer(cache, asked(), *chunks)
    clock.move(1)
    assert not await answer(cache, asked(), *chunks)


@pytest.mark.parametrize(
    "outcome",
    [Outcome.STOPPED, Outcome.CALLER_GONE, Outcome.UPSTREAM_TRUNCATED, Outcome.REFUSED, Outcome.INTERNAL_ERROR],
)
async def test_an_answer_that_is_not_complete_is_not_kept(given: Services, outcome: Outcome) -> None:
    cache = await started(AnswerCache(), given)
    assert not await answer(cache, asked(), EVENT % b"a", outcome=outcome)
    assert not await answer(cache, asked(), EVENT % b"a", DONE)
    assert await answer(cache, asked(), EVENT % b"a", DONE)


async def test_an_answer_of_another_model_is_not_kept(given: Services) -> None:
    cache = await started(AnswerCache(), given)
    assert not await answer(cache, asked(), EVENT % b"a", DONE, by="other")
    assert not await answer(cache, asked(), EVENT % b"a", DONE)
    assert await answer(cache, asked(), EVENT % b"a", DONE)


async def test_the_memory_is_bounded(given: Services) -> None:
    cache = await started(AnswerCache(megabytes=0.1, longest_kilobytes=20), given)
    assert not await answer(cache, asked("large"), EVENT % (b"x" * 15_000), EVENT % (b"x" * 15_000), DONE)
    assert not await answer(cache, asked("large"), DONE)
    assert await answer(cache, asked("large"), DONE)
    chunks = (EVENT % (b"x" * 15_000), DONE)
    for number in range(10):
        assert not await answer(cache, asked(str(number)), *chunks)
    assert cache._size <= 100_000
    assert cache._size == sum(kept.size for kept in cache._answers.values())
    assert await answer(cache, asked("9"), *chunks)
    assert not await answer(cache, asked("0"), *chunks)


async def test_explain_says_what_is_in_memory(given: Services) -> None:
    cache = await started(AnswerCache(shared=True), given)
    assert await cache.explain(asked(temperature=1)) == "does not keep answers to such requests"
    assert await cache.explain(asked()) == "keeps the answer"
    assert not await answer(cache, asked(account="bob"), DONE)
    assert await cache.explain(asked()) == "answers from memory"


def test_bounds_are_above_zero() -> None:
    with pytest.raises(ValueError, match="must be above 0"):
        AnswerCache(seconds=0)
