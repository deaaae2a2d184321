"""The process that sends alerts loses nothing; a sink that takes no turn is ended; a data folder has one gateway."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gateway.alerts.event import Outbox
from gateway.alerts.sender import AT_ONCE, LEASE_S
from gateway.alerts.signature import VARIABLE
from gateway.base.errors import GatewayError, Misconfigured
from gateway.base.ids import now_ms
from gateway.config.schema import load
from gateway.metrics.shared import SharedNumbers
from gateway.runtime.handover import Handover, Offer
from gateway.serve import alert_sender
from gateway.serve.serve import NAME, SinkWatch, instance_lock
from gateway.store.client.client import Client
from gateway.usage import completeness
from tests.alerts.receiver import NEVER, OK, SECRET, receiving
from tests.alerts.test_sender import credential
from tests.forked import FORKED
from tests.patience import PATIENCE_S, wait_until


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, SECRET)


def file_in(folder: Path, text: str) -> Path:
    file = folder / "gateway.yaml"
    file.write_text(f"data: {folder}/data\n{text}")
    return file


@asynccontextmanager
async def sender(file: Path, url: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(FORKED, "-m", "tests.alert_sender_process", str(file), url)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
        await asyncio.wait_for(process.wait(), PATIENCE_S)


async def test_killed_between_claim_and_delivery_the_event_is_delivered_by_another(
    client: Client, store_url: str, tmp_path: Path
) -> None:
    async with receiving(NEVER, OK) as receiver:
        file = file_in(tmp_path, f"alerts: {{webhook: '{receiver.url}'}}\n")
        async with sender(file, store_url) as first:
            await Outbox(client).claim(credential(0))
            await wait_until(lambda: bool(receiver.got))
            first.kill()
            await first.wait()
        ((record, due),) = await client.call("ZRANGE", "gw:{alert-events}:queue", 0, -1, "WITHSCORES")
        assert now_ms() < due < now_ms() + LEASE_S * 1000
        await client.call("ZADD", "gw:{alert-events}:queue", 0, record)  # as after this time
        async with sender(file, store_url):
            await wait_until(lambda: len(receiver.got) == 2)
            async with asyncio.timeout(PATIENCE_S):
                while await client.call("ZCARD", "gw:{alert-events}:queue"):
                    await asyncio.sleep(0.01)
    assert receiver.got[0].id == receiver.got[1].id
    assert receiver.got[0].body == receiver.got[1].body


async def test_a_change_of_the_file_is_taken_up_once_the_parent_has_adopted_it(
    client: Client, store_url: str, tmp_path: Path
) -> None:
    handover, stop = Handover(1), asyncio.Event()
    async with receiving() as one, receiving() as other:
        file = file_in(tmp_path, f"alerts: {{webhook: '{one.url}'}}\n")
        task = asyncio.create_task(alert_sender.run(load(file), handover, store_url, SharedNumbers(), stop))
        await Outbox(client).claim(credential(0))
        await wait_until(lambda: len(one.got) == 1)
        changed = file_in(tmp_path, f"alerts: {{webhook: '{other.url}'}}\n").read_bytes()
        handover.write(Offer(1, 2, "offered", changed))
        os.kill(os.getpid(), signal.SIGHUP)
        await asyncio.sleep(0.1)
        await Outbox(client).claim(credential(1))
        await wait_until(lambda: len(one.got) == 2)
        handover.write(Offer(1, 2, "adopted", changed))
        os.kill(os.getpid(), signal.SIGHUP)
        await asyncio.sleep(0.1)
        await Outbox(client).claim(credential(2))
        await wait_until(lambda: len(other.got) == 1)
        handover.write(Offer(2, 3, "adopted", f"data: {tmp_path}/data\n".encode()))
        os.kill(os.getpid(), signal.SIGHUP)
        await asyncio.sleep(0.1)
        await Outbox(client).claim(credential(3))
        await asyncio.sleep(1)
        assert (len(one.got), len(other.got)) == (2, 1), "without a webhook nothing is sent"
        stop.set()
        await asyncio.wait_for(task, PATIENCE_S)


async def test_what_is_sent_is_counted_where_the_metrics_are_read(
    client: Client, store_url: str, tmp_path: Path
) -> None:
    shared, stop = SharedNumbers(), asyncio.Event()
    async with receiving() as receiver:
        file = file_in(tmp_path, f"alerts: {{webhook: '{receiver.url}'}}\n")
        task = asyncio.create_task(alert_sender.run(load(file), Handover(1), store_url, shared, stop))
        await Outbox(client).claim(credential(0))
        await wait_until(lambda: dict(shared).get(("alerts", "sent")) == [1.0])
        await wait_until(lambda: dict(shared).get(("alerts_pending",)) == [0.0])
        stop.set()
        await asyncio.wait_for(task, PATIENCE_S)


async def test_a_receiver_that_does_not_answer_delays_no_other(
    client: Client, store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"{VARIABLE}_SHOP", SECRET)
    stop = asyncio.Event()
    async with receiving(NEVER, hold=True) as dead, receiving() as shop:
        others = f"others: {{shop: {{webhook: '{shop.url}', events: [credential]}}}}"
        file = file_in(tmp_path, f"alerts: {{webhook: '{dead.url}', {others}}}\n")
        task = asyncio.create_task(alert_sender.run(load(file), Handover(1), store_url, SharedNumbers(), stop))
        for number in range(20):
            await Outbox(client).claim(credential(number), ["", "shop"])
        await wait_until(lambda: len(shop.got) == 20)
        assert dead.most_at_once <= AT_ONCE
        assert len(await Outbox(client).pending(99)) == 20
        assert len({received.id for received in shop.got}) == 20
        stop.set()
        await asyncio.wait_for(task, PATIENCE_S)


def test_a_sink_that_hangs_is_logged_and_then_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("gateway.serve.serve.time.monotonic", lambda: now[0])
    (tmp_path / completeness.LOCK).touch()
    killed: list[float] = []
    watch = SinkWatch(tmp_path, lambda: killed.append(now[0]))

    def pass_s(seconds: int, *, turns: bool) -> list[str]:
        with capture_logs() as logs:
            for _ in range(seconds):
                now[0] += 1
                if turns:
                    completeness.turn(tmp_path)
                watch.look()
        return [entry["event"] for entry in logs]

    assert pass_s(400, turns=True) == []
    assert pass_s(100, turns=False) == ["sink_hangs"]
    assert pass_s(1, turns=True) == ["sink_goes_on"]
    assert pass_s(301, turns=False) == ["sink_hangs", "sink_killed"]
    assert len(killed) == 1
    now[0] += 10_000  # this process was stopped, too
    assert pass_s(1, turns=False) == []


def test_a_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / NAME).mkdir()
    with (
        pytest.raises(GatewayError, match=f"data: cannot use {tmp_path}/{NAME}: Is a directory") as refused,
        instance_lock(tmp_path),
    ):
        pass
    assert isinstance(refused.value, Misconfigured)
