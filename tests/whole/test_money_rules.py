"""The charge of each way that a request can end, in micros: one for a token of input, two for a token of output."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.store.client.client import Client
from gateway.testing import Running, running
from gateway.usage.record import Record
from tests.patience import soon
from tests.whole.aftermath import charged, last_end_record
from tests.whole.conftest import CHAIN, configuration
from tests.whole.raw import ask, chat
from tests.whole.scripted import CHUNKED, LAST, Fin, Hold, Reset, Scripted, Step, chunk
from tests.whole.test_stream import DONE, STREAM, USAGE, WORDS

EXACT = 11 + 2 * 6
INPUT = -(-len('[{"role": "user", "content": "hi"}]') // 4)
"""The estimate of the input: a token for every four bytes of the messages."""
OUTPUT = -(-sum(len(f" word{n}") for n in range(6)) // 4)
HALF = b"".join(WORDS[:4])
HALF_OUTPUT = -(-sum(len(f" word{n}") for n in range(3)) // 4)
FAILURE = b'data: {"error":{"message":"%b","type":"server_error"}}\n\n' % (b"very long " * 400)

SERVED: Sequence[Step] = [CHUNKED + chunk(STREAM) + LAST]
FAILED: Sequence[Step] = [b"HTTP/1.1 500 Broken\r\nContent-Length: 2\r\n\r\n{}"]


@pytest.fixture
def folder(client: Client, tmp_path: Path) -> Path:
    """Return a folder for a gateway. The fixture `client` has emptied the store."""
    return tmp_path


@asynccontextmanager
async def gateway_for(
    upstream: Scripted, folder: Path, url: str, *, channel: str = "", chain: str = CHAIN, ratio: str = "1"
) -> AsyncIterator[Running]:
    yaml = configuration(upstream.base_url, channel=channel, chain=chain)
    yaml = yaml.replace("models: [words, other]", f"models: [words, other], ratio: {ratio}")
    async with running(yaml, folder, url) as gateway:
        yield gateway


async def record_of(gateway: Running) -> Record:
    """Return the record of the only request, after asserting that the account has its charge and that the books balance."""
    record = await last_end_record(gateway)
    assert record.charge_micros == await charged(gateway)
    assert await gateway.store.wallet.verify("tester") == []
    return record


@pytest.mark.parametrize(
    ("script", "charge", "source"),
    [
        (SERVED, EXACT, "upstream"),
        ([CHUNKED + chunk(HALF + USAGE), 0.02, Reset], EXACT, "estimated"),
        ([CHUNKED + chunk(b"".join(WORDS) + DONE) + LAST], INPUT + 2 * OUTPUT, "estimated"),
        ([CHUNKED + chunk(HALF), 0.02, Reset], INPUT + 2 * HALF_OUTPUT, "estimated"),
        ([CHUNKED + chunk(HALF), 0.02, chunk(FAILURE) + LAST], INPUT + 2 * HALF_OUTPUT, "estimated"),
        ([CHUNKED + chunk(FAILURE) + LAST], 0, "none"),
        (FAILED, 0, "none"),
        ([Fin], INPUT, "estimated"),
        ([Hold], INPUT, "estimated"),
    ],
    ids=[
        "usage reported",
        "usage reported and then cut",
        "no usage reported",
        "cut in the middle",
        "an error event in the middle",
        "an error as the first event",
        "an error before the first byte",
        "closed without an answer",
        "silent",
    ],
)
async def test_each_ending_costs_its_charge(
    folder: Path, store_url: str, script: Sequence[Step], charge: int, source: str
) -> None:
    timers = ", timers: {first_byte: 0.3}" if script == [Hold] else ""
    async with Scripted(script) as upstream, gateway_for(upstream, folder, store_url, channel=timers) as gateway:
        await ask(gateway.port, chat(await gateway.token()))
        record = await record_of(gateway)
        assert (record.charge_micros, record.usage_source) == (charge, source)


async def test_an_upstream_that_is_never_reached_costs_nothing(folder: Path, store_url: str) -> None:
    async with Scripted(SERVED) as upstream:
        yaml = configuration(upstream.base_url)
    async with running(yaml, folder, store_url) as gateway:
        assert (await ask(gateway.port, chat(await gateway.token()))).status == 502
        assert (await record_of(gateway)).charge_micros == 0


async def test_every_attempt_that_may_have_been_billed_is_charged(folder: Path, store_url: str) -> None:
    async with Scripted([Fin], SERVED) as upstream:
        yaml = configuration(upstream.base_url).replace(
            "  fake:", f"  twin: {{base_url: '{upstream.base_url}', timers: {{total: 601}}}}\n  fake:"
        )
        yaml = yaml.replace("channels: [fake]}\n  other", "channels: [fake, twin]}\n  other")
        async with running(yaml, folder, store_url) as gateway:
            assert (await ask(gateway.port, chat(await gateway.token()))).whole
            record = await record_of(gateway)
            assert (len(record.attempts), record.charge_micros) == (2, INPUT + EXACT)


@pytest.mark.parametrize("ratio", ["0.5", "2", "0"])
async def test_a_groups_ratio_multiplies_and_is_rounded_up_once(folder: Path, store_url: str, ratio: str) -> None:
    async with Scripted(SERVED) as upstream, gateway_for(upstream, folder, store_url, ratio=ratio) as gateway:
        await ask(gateway.port, chat(await gateway.token()))
        assert (await record_of(gateway)).charge_micros == {"0.5": 12, "2": 46, "0": 0}[ratio]


async def test_what_a_request_costs_beyond_a_capped_hold_is_charged(folder: Path, store_url: str) -> None:
    chain = CHAIN.replace("- use: quota", "- use: quota\n    with: {max_hold: 0.000005}")
    async with Scripted(SERVED) as upstream, gateway_for(upstream, folder, store_url, chain=chain) as gateway:
        assert (await ask(gateway.port, chat(await gateway.token(credit=5)))).whole
        account = await gateway.store.accounts.get("tester")
        assert account is not None
        assert account.balance_micros == 5 - EXACT


class TestTheCallerLeaves:
    async def test_before_the_first_byte_it_costs_the_input(self, folder: Path, store_url: str) -> None:
        async with Scripted([Hold]) as upstream, gateway_for(upstream, folder, store_url) as gateway:
            _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
            writer.write(chat(await gateway.token()))
            await upstream.arrived.wait()
            writer.close()
            await soon(upstream.gone.wait())
            assert (await record_of(gateway)).charge_micros == INPUT

    @pytest.mark.parametrize(
        ("channel", "charge"),
        [("", INPUT + 2 * HALF_OUTPUT), (", on_caller_gone: drain, drain_limit: 2", EXACT)],
        ids=["cancel", "drain"],
    )
    async def test_mid_stream_it_costs_the_estimate_or_the_usage_of_a_drained_upstream(
        self, folder: Path, store_url: str, channel: str, charge: int
    ) -> None:
        rest = STREAM.partition(HALF)[2]
        script: Sequence[Step] = [CHUNKED + chunk(HALF), 1.0, chunk(rest) + LAST]
        async with Scripted(script) as upstream, gateway_for(upstream, folder, store_url, channel=channel) as gateway:
            reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
            writer.write(chat(await gateway.token()))
            await reader.readuntil(b"word2")
            writer.close()
            assert (await record_of(gateway)).charge_micros == charge
