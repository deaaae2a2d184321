"""Alerts of a whole gateway: what happens to requests, channels and the store reaches a receiver, signed, and no request waits."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from base64 import b64decode
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway import Budgets
from gateway.alerts.event import Outbox
from gateway.alerts.sender import Sender, Webhook
from gateway.alerts.signature import sign
from gateway.store.channels import CooldownRules
from gateway.store.client.client import Client
from gateway.testing import Running, running
from tests.alerts.receiver import NEVER, SECRET, Receiver, receiving
from tests.cli.processes import children, demo_in, serving
from tests.patience import PATIENCE_S, wait_until
from tests.test_docs import blocks
from tests.whole.raw import ask, chat
from tests.whole.scripted import Scripted, Step
from tests.whole.test_admin_port import ask as ask_served
from tests.whole.test_channels import GOOD, REFUSED, yaml
from tests.whole.test_upstream_faults import full_response

KEY = b64decode(SECRET.removeprefix("whsec_"))
Verify = Callable[[Mapping[str, str], bytes, str], bool]
FAILED: list[Step] = [full_response("500 No", b"{}")]


def documented() -> Verify:
    """Return the function of the deployment guide that verifies a signature."""
    (text,) = blocks("deploy", "python")
    names: dict[str, Any] = {}
    exec(text, names)
    verified: Verify = names["verified"]
    return verified


@asynccontextmanager
async def sending(client: Client, receiver: Receiver) -> AsyncIterator[None]:
    """Send what is in the store to a receiver."""
    sender, stop = Sender(Outbox(client)), asyncio.Event()
    sender.use(Webhook(receiver.url, [KEY]), store_events=True)
    task = asyncio.create_task(sender.run(stop))
    try:
        yield
    finally:
        stop.set()
        await asyncio.wait_for(task, PATIENCE_S)


@asynccontextmanager
async def gateway_with(
    folder: Path, url: str, receiver: Receiver, *scripts: list[Step], more: str = "", each: str = ""
) -> AsyncIterator[Running]:
    async with AsyncExitStack() as stack:
        upstreams = [await stack.enter_async_context(Scripted(*script)) for script in map(_repeated, scripts)]
        text = yaml(*(upstream.base_url for upstream in upstreams), each=each)
        text += f"alerts: {{webhook: '{receiver.url}'{more}}}\n"
        gateway = await stack.enter_async_context(running(text, folder, url))
        gateway.store.alerts.up_after_s = 0.0
        yield gateway


def _repeated(script: list[Step]) -> list[list[Step]]:
    return [[step] for step in script]


async def test_the_documented_verification_accepts_what_is_sent_and_refuses_what_was_changed(
    store_url: str, client: Client, tmp_path: Path
) -> None:
    verified = documented()
    async with (
        receiving() as receiver,
        sending(client, receiver),
        gateway_with(tmp_path, store_url, receiver, GOOD, more=", low_balance: 6") as gateway,
    ):
        assert (await ask(gateway.port, chat(await gateway.token()))).status == 200
        await wait_until(lambda: bool(receiver.got))
    (got,) = receiver.got
    assert verified(got.headers, got.body, SECRET)
    assert not verified(got.headers, got.body.replace(b"tester", b"attack"), SECRET)
    assert not verified(got.headers, got.body, "whsec_" + "A" * 43 + "=")
    for name, value in (
        ("webhook-id", "msg_other"),
        ("webhook-timestamp", str(int(got.headers["webhook-timestamp"]) + 1)),
        ("webhook-signature", sign([b"another key"], got.id, int(got.headers["webhook-timestamp"]), got.body)),
    ):
        assert not verified({**got.headers, name: value}, got.body, SECRET), name
    old = str(int(got.headers["webhook-timestamp"]) - 301)
    signature = sign([KEY], got.id, int(old), got.body)
    replayed = {**got.headers, "webhook-timestamp": old, "webhook-signature": signature}
    assert not verified(replayed, got.body, SECRET)


async def test_a_low_balance_is_sent_once_until_it_was_credited(store_url: str, client: Client, tmp_path: Path) -> None:
    async with (
        receiving() as receiver,
        sending(client, receiver),
        gateway_with(tmp_path, store_url, receiver, GOOD, more=", low_balance: 6") as gateway,
    ):
        token = await gateway.token(credit=5_000_000)
        for _ in range(5):
            assert (await ask(gateway.port, chat(token))).status == 200
        await wait_until(lambda: bool(receiver.got))
        await gateway.store.wallet.credit("tester", "more", 2_000_000)
        assert (await ask(gateway.port, chat(token))).status == 200
        await gateway.store.wallet.adjust("tester", "less", -1_500_000, "a test")
        for _ in range(2):
            assert (await ask(gateway.port, chat(token))).status == 200
        await wait_until(lambda: len(receiver.got) == 2)
    assert receiver.types == ["balance.low"] * 2
    assert receiver.got[0].event["data"]["account"] == "tester"
    assert receiver.got[0].event["data"]["available_micros"] == 5_000_000


async def test_a_balance_that_refuses_a_request_is_sent(store_url: str, client: Client, tmp_path: Path) -> None:
    async with (
        receiving() as receiver,
        sending(client, receiver),
        gateway_with(tmp_path, store_url, receiver, GOOD, more=", low_balance: 6") as gateway,
    ):
        assert (await ask(gateway.port, chat(await gateway.token(credit=1)))).status == 402
        await wait_until(lambda: receiver.types == ["balance.low"])


async def test_the_use_of_budgets_is_sent_at_each_level_once(store_url: str, client: Client, tmp_path: Path) -> None:
    async with (
        receiving() as receiver,
        sending(client, receiver),
        gateway_with(tmp_path, store_url, receiver, GOOD) as gateway,
    ):
        token = await gateway.token(credit=5_000_000)
        await gateway.store.accounts.change("tester", budgets=Budgets(requests=5))
        statuses = [(await ask(gateway.port, chat(token))).status for _ in range(7)]
        assert statuses == [200] * 5 + [402] * 2
        await wait_until(lambda: len(receiver.got) == 3)
        made = await gateway.store.tokens.create("tester", budgets=Budgets(total=1))
        await gateway.store.accounts.change("tester", budgets=Budgets())
        assert (await ask(gateway.port, chat(made.token))).status == 402
        await gateway.store.tokens.change(made.id, budgets={"total": None, "requests": 1})
        assert (await ask(gateway.port, chat(made.token))).status == 200
        await wait_until(lambda: len(receiver.got) == 4)
    assert receiver.types == ["budget.reached"] * 4, "none for the budget that only refused a request"
    told = [got.event["data"] for got in sorted(receiver.got, key=lambda got: got.event["data"]["percent"])]
    assert [(each["percent"], each["used"]) for each in told[:2]] == [(50, 3), (80, 4)]
    assert [each["percent"] for each in told[2:]] == [100, 100]
    assert {each["token"] for each in told} == {None, made.id}


async def test_a_channel_that_fails_is_down_and_then_up(store_url: str, client: Client, tmp_path: Path) -> None:
    script = [*FAILED * 6, *GOOD]
    async with (
        receiving() as receiver,
        sending(client, receiver),
        gateway_with(tmp_path, store_url, receiver, script) as gateway,
    ):
        gateway.store.channels.cooldown = CooldownRules(first_ms=50, max_ms=100)
        tokens = [await gateway.token(account) for account in ("tester", "other")]
        async with asyncio.timeout(PATIENCE_S):
            while "channel.up" not in receiver.types:
                for token in tokens:
                    await ask(gateway.port, chat(token))
                await asyncio.sleep(0.05)
    events = [got.event for got in receiver.got if got.event["type"] != "channel.failing"]  # before it fails for both
    assert [event["type"] for event in events] == ["channel.down", "channel.up"]
    down = events[0]["data"]
    assert (down["channel"], down["error"]) == ("c0", "upstream_error")


async def test_a_refused_credential_is_sent_with_its_index(store_url: str, client: Client, tmp_path: Path) -> None:
    async with (
        receiving() as receiver,
        sending(client, receiver),
        gateway_with(
            tmp_path,
            store_url,
            receiver,
            [REFUSED, *GOOD],
            each=", api_keys: [canary-credential-0, canary-credential-1]",
        ) as gateway,
    ):
        assert (await ask(gateway.port, chat(await gateway.token()))).status == 200
        await wait_until(lambda: bool(receiver.got))
    (got,) = receiver.got
    assert got.event["type"] == "credential.refused"
    assert {name: got.event["data"][name] for name in ("channel", "number", "of")} == {
        "channel": "c0",
        "number": 1,
        "of": 2,
    }
    assert b"canary" not in got.body


async def test_two_gateways_on_one_store_send_it_once(store_url: str, client: Client, tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
    pepper = folders[0] / "data/pepper"
    async with (
        receiving() as receiver,
        sending(client, receiver),
        sending(client, receiver),
        gateway_with(folders[0], store_url, receiver, GOOD, more=", low_balance: 6") as first,
    ):
        (folders[1] / "data").mkdir()
        (folders[1] / "data/pepper").write_bytes(pepper.read_bytes())
        async with gateway_with(folders[1], store_url, receiver, GOOD, more=", low_balance: 6") as second:
            tokens = [await first.token(f"account{number}") for number in range(10)]
            answers = await asyncio.gather(
                *(ask(gateway.port, chat(token)) for token in tokens for gateway in (first, second) for _ in range(3))
            )
            assert {answer.status for answer in answers} == {200}
            await wait_until(lambda: len(receiver.got) >= 10)
        await asyncio.sleep(1)
    accounts = [received.event["data"]["account"] for received in receiver.got]
    assert sorted(accounts) == sorted({*accounts})
    assert len(accounts) == 10


async def test_requests_are_served_while_the_receiver_does_not_answer(
    store_url: str, client: Client, tmp_path: Path
) -> None:
    async with (
        receiving(NEVER) as receiver,
        sending(client, receiver),
        gateway_with(tmp_path, store_url, receiver, GOOD, more=", low_balance: 6") as gateway,
    ):
        tokens = [await gateway.token(f"account{number}") for number in range(30)]
        answers = await asyncio.gather(*(ask(gateway.port, chat(token)) for token in tokens))
        assert {answer.status for answer in answers} == {200}
        await wait_until(lambda: receiver.at_once > 0)
        answers = await asyncio.gather(*(ask(gateway.port, chat(token)) for token in tokens))
        assert {answer.status for answer in answers} == {200}
        assert receiver.sent == 0, "none of them was answered"


@pytest.mark.skipif(sys.platform != "linux", reason="needs the whole program")
async def test_a_running_gateway_takes_up_alerts_and_changes_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GATEWAY_ALERTS_SECRET", SECRET)
    verified, file = documented(), demo_in(tmp_path)
    text = file.read_text()
    log = tmp_path / "serve.log"

    async def reloaded(times: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while (await asyncio.to_thread(log.read_text)).count('"reloaded"') < times:
                await asyncio.sleep(0.05)

    async with receiving() as one, receiving() as other, serving(file) as served:
        before = children(served.pid)
        file.write_text(f"{text}alerts: {{webhook: '{one.url}', low_balance: 6}}\n")
        await reloaded(1)
        await ask_served(served)
        await wait_until(lambda: one.types == ["balance.low"])
        assert len(children(served.pid)) == len(before) + 1
        assert verified(one.got[0].headers, one.got[0].body, SECRET)
        file.write_text(f"{text}alerts: {{webhook: '{other.url}', low_balance: 6}}\n")
        await reloaded(2)
        (store,) = [pid for pid, line in children(served.pid).items() if "store.sock" in line]
        os.kill(store, signal.SIGSTOP)
        await wait_until(lambda: other.types == ["store.away"])
        os.kill(store, signal.SIGCONT)
        await wait_until(lambda: other.types == ["store.away", "store.back"])
        assert await served.stop() == 0
    shown = log.read_text()
    assert "path-credential" not in shown
    assert "query-credential" not in shown
    assert SECRET not in shown


@pytest.mark.skipif(sys.platform != "linux", reason="needs the whole program")
async def test_a_reload_with_a_wrong_secret_is_refused(tmp_path: Path) -> None:
    file = demo_in(tmp_path)
    text = file.read_text()
    async with serving(file) as served:
        (tmp_path / "data/alerts.secret").write_text("not a secret at all, only words\n")
        file.write_text(f"{text}alerts: {{webhook: 'http://127.0.0.1:9/'}}\n")
        async with asyncio.timeout(PATIENCE_S):
            while "reload_refused" not in await asyncio.to_thread((tmp_path / "serve.log").read_text):
                await asyncio.sleep(0.05)
        assert "openssl rand" in (tmp_path / "serve.log").read_text()
        assert await served.stop() == 0
