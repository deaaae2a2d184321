"""What a request holds, is charged, and costs at the upstream; and what is held when one attempt fails and another follows.

`pytest -s -k bill` prints the table of holds, charges and bills.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.store.client.client import Client
from gateway.testing import Running, running
from gateway.usage.record import Record
from tests.patience import PATIENCE_S, soon
from tests.whole.aftermath import last_end_record
from tests.whole.conftest import CHAIN
from tests.whole.raw import Answer, ask, chat
from tests.whole.scripted import CHUNKED, LAST, Fin, Forever, Scripted, Step, chunk
from tests.whole.test_money_races import GREEDY, LowestBalance

INPUT, OUTPUT = 2.5, 10
"""Micros for a token."""
COST = f"cost: {{input: {INPUT}, output: {OUTPUT}}}"
PRICES = f"input: {INPUT}, output: {OUTPUT}"
WORD = b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"x"},"finish_reason":"stop"}]}\n\n'
REFUSED = b"HTTP/1.1 500 Broken\r\nContent-Length: 2\r\n\r\n{}"


def reporting(**usage: Any) -> bytes:
    """Return a stream that ends with this usage."""
    final = json.dumps({"id": "c", "choices": [], "usage": usage}).encode()
    return CHUNKED + chunk(WORD + b"data: %b\n\ndata: [DONE]\n\n" % final) + LAST


SERVED = reporting(prompt_tokens=11, completion_tokens=6)
CHARGE = round(11 * INPUT + 6 * OUTPUT + 0.49)


class Waiting(Scripted):
    """An upstream that waits for `gate` before it does what `then` says."""

    def __init__(self, *then: Step) -> None:
        self.gate = asyncio.Event()
        super().__init__([Forever(b"", 0.01, until=self.gate.is_set), *then])


@pytest.fixture
def folder(client: Client, tmp_path: Path) -> Path:
    """Return a folder for a gateway. The fixture `client` has emptied the store."""
    return tmp_path


@asynccontextmanager
async def serving(folder: Path, url: str, *upstreams: Scripted, quota: str = "") -> AsyncIterator[Running]:
    """Run a gateway whose model has a channel for each upstream, tried in this order."""
    names = [f"channel{number}" for number in range(len(upstreams))]
    channels = "\n".join(
        f'  {name}: {{base_url: "{upstream.base_url}"}}' for name, upstream in zip(names, upstreams, strict=True)
    )
    used = ", ".join(f"{{use: {name}, priority: {number}, {COST}}}" for number, name in enumerate(names))
    yaml = f"""
channels:
{channels}
models:
  words: {{{PRICES}, max_output_tokens: 100, channels: [{used}]}}
groups: {{default: {{}}}}
store: {{timeout: {PATIENCE_S}}}
{CHAIN.replace("- use: quota", f"- use: quota{quota}")}
"""
    async with running(yaml, folder, url) as gateway:
        yield gateway


async def held(gateway: Running) -> int:
    account = await gateway.store.accounts.get("tester")
    assert account is not None
    return account.held_micros


async def charged_of(gateway: Running, credit: int) -> Record:
    """Return the last record, after asserting that the account has its charge and that the books balance."""
    record = await last_end_record(gateway)
    account = await gateway.store.accounts.get("tester")
    assert account is not None
    assert (account.held_micros, credit - account.balance_micros) == (0, record.charge_micros)
    assert await gateway.store.wallet.verify("tester") == []
    return record


PICTURE = {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64," + "QUFB" * 350_000}}
TOOL = {"type": "function", "function": {"name": "f", "description": "x" * 400, "parameters": {"type": "object"}}}
LINES = "A line of forty letters in some text.\n" * 1053

CASES: dict[str, tuple[dict[str, Any], dict[str, Any], int, int]] = {
    "a picture of 1 MB": (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "What is this?"}, PICTURE]}], "max_tokens": 1000},
        {"prompt_tokens": 1117, "completion_tokens": 300},
        100_000,
        100_000,
    ),
    "40 KB of text": (
        {"messages": [{"role": "user", "content": LINES}], "max_tokens": 600},
        {"prompt_tokens": 9_480, "completion_tokens": 450},
        110_000,
        110_000,
    ),
    "tools of 220 KB": (
        {"tools": [TOOL] * 450, "max_tokens": 1000},
        {"prompt_tokens": 52_000, "completion_tokens": 40},
        5_000_000,
        650_000,
    ),
    "30,000 reasoning tokens": (
        {"messages": [{"role": "user", "content": "Prove it. " * 20}], "max_completion_tokens": 32_000},
        {
            "prompt_tokens": 61,
            "completion_tokens": 30_400,
            "completion_tokens_details": {"reasoning_tokens": 30_000},
            "total_tokens": 30_461,
        },
        5_000_000,
        325_000,
    ),
}  # fmt: skip
"""The body, the usage that the upstream reports, the account's balance, and the most that may be held, in micros."""


@pytest.mark.parametrize("case", CASES)
async def test_the_hold_covers_the_bill_and_the_charge_is_the_bill(folder: Path, store_url: str, case: str) -> None:
    body, usage, credit, most = CASES[case]
    async with (
        Waiting(reporting(**usage)) as upstream,
        Waiting(SERVED) as other,
        serving(folder, store_url, upstream, other) as gateway,
    ):
        asking = asyncio.create_task(ask(gateway.port, chat(await gateway.token(credit=credit), body)))
        await soon(upstream.arrived.wait())
        hold = await held(gateway)
        upstream.gate.set()
        assert (await asking).whole
        record = await charged_of(gateway, credit)
        bill = usage["prompt_tokens"] * INPUT + usage["completion_tokens"] * OUTPUT
        print(f"\n| {case} | {hold} | {record.charge_micros} | {bill:.1f} |")
        assert record.charge_micros == record.cost_micros == -(-bill // 1)
        assert record.charge_micros <= hold <= most


def first_hold(body: bytes) -> int:
    """Return what one attempt of a short request holds."""
    return round((len(body) + 16 + 128) * INPUT + 100 * OUTPUT + 0.49)


BODY = chat("").partition(b"\r\n\r\n")[2]
ONE = first_hold(BODY)
FAILED = round(-(-len('[{"role": "user", "content": "hi"}]') // 4) * INPUT + 0.49)
"""Micros for an attempt without an answer: the estimate of the input."""


async def test_one_attempt_is_held_at_a_time(folder: Path, store_url: str) -> None:
    async with (
        Waiting(Fin) as first,
        Waiting(Fin) as second,
        Waiting(SERVED) as third,
        serving(folder, store_url, first, second, third) as gateway,
    ):
        asking = asyncio.create_task(ask(gateway.port, chat(await gateway.token(credit=100_000))))
        holds = []
        for upstream in (first, second, third):
            await soon(upstream.arrived.wait())
            holds.append(await held(gateway))
            upstream.gate.set()
        assert (await asking).whole
        record = await charged_of(gateway, 100_000)
        more = [0, FAILED, 2 * FAILED]
        assert [hold - ONE - each for hold, each in zip(holds, more, strict=True)] == pytest.approx([0, 0, 0], abs=1)
        assert record.charge_micros == pytest.approx(2 * FAILED + CHARGE, abs=2)
        assert record.price["hold_micros"] == holds[-1]


@pytest.mark.parametrize("credit", [ONE, ONE + FAILED - 2])
async def test_a_balance_for_one_attempt_and_not_for_two_pays_for_one_and_gets_its_error(
    folder: Path, store_url: str, credit: int
) -> None:
    async with Scripted([Fin]) as first, Scripted([SERVED]) as second:
        async with serving(folder, store_url, first) as gateway:
            token = await gateway.token(credit=credit + FAILED)
            alone = await ask(gateway.port, chat(token))
        async with serving(folder, store_url, first, second) as gateway:
            answer = await ask(gateway.port, chat(token))
            record = await charged_of(gateway, credit)
    assert (len(first.requests), len(second.requests), record.charge_micros) == (2, 0, FAILED)
    assert record.price["hold_refused_micros"] == pytest.approx(ONE + FAILED, abs=1)
    assert seen(answer) == seen(alone)
    assert (answer.status, answer.error["code"], answer.headers["x-should-retry"]) == (502, "upstream_error", "false")


def seen(answer: Answer) -> tuple[object, ...]:
    """Return what a caller sees of an error, without the request's id."""
    headers = {name: answer.headers.get(name) for name in ("x-should-retry", "retry-after", "retry-after-ms")}
    return answer.status, headers, {**answer.error, "request_id": ""}


async def test_a_balance_for_both_is_enough(folder: Path, store_url: str) -> None:
    credit = ONE + FAILED
    async with (
        Scripted([Fin]) as first,
        Scripted([SERVED]) as second,
        serving(folder, store_url, first, second) as gateway,
    ):
        assert (await ask(gateway.port, chat(await gateway.token(credit=credit)))).whole
        assert (await charged_of(gateway, credit)).charge_micros == pytest.approx(FAILED + CHARGE, abs=1)


@pytest.mark.parametrize("script", [[REFUSED], [CHUNKED + chunk(b'data: {"error":{"message":"no"}}\n\n') + LAST]])
async def test_after_an_attempt_that_costs_nothing_no_more_is_needed(
    folder: Path, store_url: str, script: Sequence[Step]
) -> None:
    async with (
        Scripted(script) as first,
        Scripted([SERVED]) as second,
        serving(folder, store_url, first, second) as gateway,
    ):
        assert (await ask(gateway.port, chat(await gateway.token(credit=ONE)))).whole
        record = await charged_of(gateway, ONE)
        assert (record.charge_micros, "hold_micros" in record.price) == (CHARGE, False)


async def test_a_capped_hold_does_not_grow(folder: Path, store_url: str) -> None:
    quota = "\n    with: {max_hold: 0.0001}"
    async with (
        Scripted([Fin]) as first,
        Waiting(SERVED) as second,
        serving(folder, store_url, first, second, quota=quota) as gateway,
    ):
        asking = asyncio.create_task(ask(gateway.port, chat(await gateway.token(credit=100))))
        await soon(second.arrived.wait())
        assert await held(gateway) == 100
        second.gate.set()
        assert (await asking).whole
        assert (await charged_of(gateway, 100)).charge_micros == pytest.approx(FAILED + CHARGE, abs=1)


async def test_a_charge_with_failed_attempts_is_capped_at_what_they_all_can_cost(folder: Path, store_url: str) -> None:
    async with (
        Scripted([Fin]) as first,
        Scripted([CHUNKED + chunk(GREEDY) + LAST]) as second,
        serving(folder, store_url, first, second) as gateway,
    ):
        assert (await ask(gateway.port, chat(await gateway.token(credit=100_000)))).whole
        record = await charged_of(gateway, 100_000)
        assert record.charge_micros == record.price["hold_micros"] == record.price["capped_micros"]
        assert record.charge_micros == pytest.approx(ONE + FAILED, abs=1)


CALLERS, ADMITTED = 50, 10


@pytest.mark.parametrize("spare", [0, 3 * FAILED, ONE])
async def test_fifty_at_once_whose_first_attempt_fails_never_overspend(
    folder: Path, store_url: str, spare: int
) -> None:
    async with (
        Waiting(Fin) as first,
        Scripted([CHUNKED + chunk(GREEDY) + LAST]) as second,
        serving(folder, store_url, first, second) as gateway,
    ):
        token = await gateway.token(credit=ADMITTED * ONE + min(spare, ONE - 1))
        lowest = LowestBalance(gateway)
        watching = asyncio.create_task(lowest.watch())
        callers = [asyncio.create_task(ask(gateway.port, chat(token))) for _ in range(CALLERS)]

        async def gathered() -> None:
            while sum(not caller.done() for caller in callers) > len(first.requests) or not first.requests:
                await asyncio.sleep(0.01)

        await soon(gathered())
        assert len(first.requests) == ADMITTED
        first.gate.set()
        statuses = Counter(answer.status for answer in await asyncio.gather(*callers))
        await gateway.gateway.runner.wait_ended()
        watching.cancel()
        await asyncio.wait([watching])
        await lowest.read()
        await lowest.read_ledger()
        assert min(lowest.balance, lowest.available) >= 0
        served = len(second.requests)
        assert (statuses[200], statuses[402], statuses[502]) == (served, CALLERS - ADMITTED, ADMITTED - served)
        assert served >= (1 if spare else 0)
        assert await gateway.store.wallet.verify("tester") == []
