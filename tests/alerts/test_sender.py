"""Webhooks: each event reaches the receiver, signed, at least once, within bounds of time and memory."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
import tracemalloc
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import trustme
from structlog.testing import capture_logs

from gateway.alerts import event
from gateway.alerts import sender as module
from gateway.alerts.event import EventClaim, Outbox
from gateway.alerts.sender import MAX_OWN, MAX_SHOWN, Delivery, Sender, Webhook
from gateway.alerts.signature import VARIABLE, new_secret, secrets_of, sign
from gateway.base.errors import Misconfigured, StoreAway
from gateway.base.ids import now_ms
from gateway.config.schema import Config
from gateway.store.client.client import Client
from gateway.store.embedded import EmbeddedStore
from tests.alerts.receiver import NEVER, OK, SECRET, Receiver, answer, closed_port, receiving
from tests.patience import PATIENCE_S, wait_until
from tests.store.conftest import own_store

__all__ = ["own_store"]  # fixtures

# Every event reaches the receiver once in normal operation, and at least once, with the same id, whatever fails.
KEY = b64decode(SECRET.removeprefix("whsec_"))
ERROR = answer(500)
FAST_S = 0.05


def credential(number: int = 0) -> EventClaim:
    made = event.event("credential.refused", f"{number}", channel="a", number=number)
    return EventClaim(f"credential:a:{number}", made, 3_600_000)


@asynccontextmanager
async def sending(
    client: Client,
    url: str,
    *,
    count: Callable[[str], None] = lambda result: None,
    total_s: float = PATIENCE_S,
    store_events: bool = True,
    **times: Any,
) -> AsyncIterator[Sender]:
    sender = Sender(Outbox(client), count=count)
    sender.use(Webhook(url, [KEY], total_s=total_s), store_events=store_events)
    stop = asyncio.Event()
    with patch.multiple("gateway.alerts.sender", **{"FIRST_S": FAST_S, **times}):
        task = asyncio.create_task(sender.run(stop))
        try:
            yield sender
        finally:
            stop.set()
            await asyncio.wait_for(task, PATIENCE_S)


async def empty(client: Client) -> None:
    """Wait until nothing is left in the queue."""
    async with asyncio.timeout(PATIENCE_S):
        while await client.call("ZCARD", "gw:{alert-events}:queue"):
            await asyncio.sleep(0.01)


async def test_two_errors_and_then_success_have_one_id_and_new_signatures(client: Client) -> None:
    counted: list[str] = []
    with capture_logs() as lines:
        async with receiving(ERROR, ERROR, OK) as receiver, sending(client, receiver.url, count=counted.append):
            await Outbox(client).claim(credential())
            await empty(client)
    assert len(receiver.got) == 3
    assert len({received.id for received in receiver.got}) == 1
    assert counted == ["failed", "failed", "sent"]
    for received in receiver.got:
        timestamp = int(received.headers["webhook-timestamp"])
        assert received.headers["webhook-signature"] == sign([KEY], received.id, timestamp, received.body)
    assert [line["event"] for line in lines] == ["alert_failed", "alert_failed", "alert_sent"]
    assert "-credential" not in str(lines), "the address holds credentials"


async def test_when_one_gateway_stops_the_other_goes_on_at_once(client: Client) -> None:
    async with receiving() as receiver, sending(client, receiver.url):
        await Outbox(client).claim(credential(1))
        await empty(client)
        async with sending(client, receiver.url):
            pass
    async with receiving() as receiver, sending(client, receiver.url):
        began = time.monotonic()
        await Outbox(client).claim(credential(2))
        await empty(client)
    assert time.monotonic() - began < module.LEASE_S


async def test_after_a_day_an_event_is_given_up_and_logged(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GIVEN_UP_AFTER_S", 0.3)
    counted: list[str] = []
    with capture_logs() as lines:
        async with receiving(ERROR) as receiver, sending(client, receiver.url, count=counted.append):
            await Outbox(client).claim(credential())
            await empty(client)
    assert counted.count("given_up") == 1
    (line,) = [line for line in lines if line["event"] == "alert_given_up"]
    assert (line["reason"], line["host"]) == ("it answered 500", "127.0.0.1")
    (kept,) = await Outbox(client).ended()
    assert kept.error == "it answered 500"


async def test_the_pause_grows_up_to_an_hour_and_varies(client: Client) -> None:
    sender = Sender(Outbox(client))
    webhook = Webhook("http://127.0.0.1:9/", [KEY])
    first = event.entry_of(event.event("test", "here"))
    pauses = []
    for attempts in range(20):
        entry = event.OutboxEntry(first.id, first.type, first.body, first.created_ms, attempts)
        tried, pause = await sender._attempt(webhook, entry)
        assert pause is not None
        assert tried.attempts == attempts + 1
        most = min(3600, 2 * 2**attempts)
        assert most / 2 <= pause <= most
        pauses.append(pause)
    assert len(set(pauses)) == 20


async def test_a_store_that_is_away_and_back_is_sent_from_memory(own_store: Callable[[], EmbeddedStore]) -> None:
    store = own_store()
    client = Client.connect(store.url, timeout_s=5)
    async with receiving() as receiver, sending(client, receiver.url, AWAY_AFTER_S=0.2):
        await Outbox(client).claim(credential())
        await empty(client)
        store.stop()
        await wait_until(lambda: receiver.types[-1:] == ["store.away"])
        own_store()
        await wait_until(lambda: receiver.types[-1:] == ["store.back"])
    assert receiver.types == ["credential.refused", "store.away", "store.back"]
    assert receiver.got[-1].event["data"]["gateway"]
    await client.close()


async def test_the_events_of_the_store_keep_their_order_and_are_repeated(
    own_store: Callable[[], EmbeddedStore],
) -> None:
    store = own_store()
    client = Client.connect(store.url, timeout_s=5)
    async with receiving(ERROR, ERROR, OK) as receiver, sending(client, receiver.url, AWAY_AFTER_S=0.1) as sender:
        await wait_until(lambda: sender._failing_since is None)
        store.stop()
        await wait_until(lambda: sender._away)
        own_store()
        await wait_until(lambda: receiver.types[-1:] == ["store.back"])
    assert receiver.types == ["store.away"] * 3 + ["store.back"]
    assert len({received.id for received in receiver.got}) == 2
    await client.close()


async def test_without_store_events_nothing_is_sent_about_the_store() -> None:
    client = Client.connect("unix:///nowhere/store.sock", timeout_s=0.1)
    async with receiving() as receiver, sending(client, receiver.url, AWAY_AFTER_S=0, store_events=False) as sender:
        await wait_until(lambda: sender._away)
    assert receiver.got == []
    await client.close()


async def test_the_memory_for_events_of_the_store_is_bounded() -> None:
    counted: list[str] = []
    client = Client.connect("unix:///nowhere/store.sock", timeout_s=0.1)
    sender = Sender(Outbox(client), count=counted.append)
    sender.use(Webhook("http://127.0.0.1:9/", [KEY]), store_events=True)
    for _ in range(100):
        sender._keep("away", "here")
    assert len(sender._own) == MAX_OWN
    assert counted == ["dropped"] * (100 - MAX_OWN)
    await client.close()


async def test_what_was_sent_while_the_store_went_away_comes_again_with_the_same_id(
    own_store: Callable[[], EmbeddedStore],
) -> None:
    store = own_store()
    client = Client.connect(store.url, timeout_s=5)
    outbox = UnreportedOutbox(client)
    receiver = StoppingReceiver(store.stop)
    await receiver.start()
    async with sending(client, receiver.url, AWAY_AFTER_S=60, LEASE_S=1.0) as sender:
        sender._outbox = outbox
        await outbox.claim(credential())
        await asyncio.wait_for(outbox.failed.wait(), PATIENCE_S)
        own_store()
        await empty(client)
    await receiver.stop()
    assert receiver.types == ["credential.refused"] * 2
    assert len({received.id for received in receiver.got}) == 1
    await client.close()


class UnreportedOutbox(Outbox):
    """Says when a report has failed."""

    def __init__(self, client: Client) -> None:
        super().__init__(client)
        self.failed = asyncio.Event()

    async def report(self, *given: Any) -> None:
        try:
            await super().report(*given)
        except StoreAway:
            self.failed.set()
            raise


class StoppingReceiver(Receiver):
    """Stops the store before its first answer."""

    def __init__(self, stop_store: Callable[[], None]) -> None:
        super().__init__([OK])
        self._stop_store = stop_store

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self.got:
            await asyncio.to_thread(self._stop_store)
        await super().serve(reader, writer)


async def test_a_webhook_that_is_exchanged_gets_what_is_left(client: Client) -> None:
    async with receiving(ERROR) as before, receiving() as after, sending(client, before.url) as sender:
        await Outbox(client).claim(credential())
        await wait_until(lambda: len(before.got) > 1)
        sender.use(Webhook(after.url, [KEY]), store_events=True)
        await empty(client)
    assert {received.id for received in before.got} == {after.got[0].id}


async def test_without_a_webhook_nothing_is_taken(client: Client) -> None:
    sender, outbox = Sender(Outbox(client)), Outbox(client)
    await outbox.claim(credential())
    assert not await sender.step()
    ((_, due),) = await outbox.pending(1)
    assert due <= now_ms()


async def test_a_stop_does_not_wait_for_a_receiver_that_does_not_answer(client: Client) -> None:
    async with receiving(NEVER) as receiver:
        began = time.monotonic()
        async with sending(client, receiver.url, total_s=1000):
            await Outbox(client).claim(credential())
            await wait_until(lambda: bool(receiver.got))
        assert time.monotonic() - began < PATIENCE_S
    assert await client.call("ZCARD", "gw:{alert-events}:queue") == 1


def test_a_round_of_attempts_takes_less_than_the_lease() -> None:
    assert module.LEASE_S > 2 * module.TOTAL_S


# One attempt: what is sent, which answers count as success, and that nothing of a receiver takes more than its time and memory.
SHORT_S = 0.3
"""How long attempts that fail may take here."""


async def post(url: str, *, total_s: float = PATIENCE_S) -> Delivery:
    return await Webhook(url, [KEY], total_s=total_s).post("msg_1", b'{"a": 1}')


async def test_the_body_is_signed_with_the_time_of_the_attempt() -> None:
    async with receiving(OK) as receiver:
        assert await post(receiver.url) == Delivery(204)
    (got,) = receiver.got
    timestamp = int(got.headers["webhook-timestamp"])
    assert abs(time.time() - timestamp) < PATIENCE_S
    assert got.headers["webhook-signature"] == sign([KEY], "msg_1", timestamp, got.body)
    assert (got.id, got.body) == ("msg_1", b'{"a": 1}')
    assert got.headers["content-type"] == "application/json"


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299, 400, 401, 404, 405, 410, 429, 500, 503])
async def test_any_2xx_is_success_and_any_other_status_is_not(status: int) -> None:
    async with receiving(answer(status)) as receiver:
        got = await post(receiver.url)
    assert (got.status, got.error) == (status, "" if status < 300 else f"it answered {status}")
    assert bool(got.cure) == bool(got.error)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_no_redirect_is_followed(status: int) -> None:
    async with receiving(OK) as other, receiving(answer(status, b"", f"Location: {other.url}")) as receiver:
        got = await post(receiver.url)
    assert got.error == f"it answered {status}, and redirects are not followed"
    assert other.got == []


async def test_a_receiver_that_never_answers_gets_its_time_and_no_more() -> None:
    async with receiving(NEVER) as receiver:
        got = await post(receiver.url, total_s=SHORT_S)
    assert got.error == "it did not answer within 0.3 s"


async def test_a_body_that_never_ends_does_not_hide_the_status(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.alerts.sender.BODY_S", SHORT_S)
    endless = b"HTTP/1.1 200 Any\r\nContent-Length: 10\r\n\r\n"
    async with receiving(endless, hold=True) as receiver:
        assert await post(receiver.url) == Delivery(200)


async def test_of_a_huge_body_only_the_beginning_is_read() -> None:
    body = b"x" * 64 * 1024 * 1024
    async with receiving(answer(200, body)) as receiver:
        tracemalloc.start()
        got = await post(receiver.url)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert got == Delivery(200, body="x" * MAX_SHOWN)
    assert peak < 8 * 1024 * 1024
    assert receiver.sent < len(body), "the receiver could not send all of it"


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 Any\r\nX: " + b"y" * 1_000_000 + b"\r\n\r\n",
        b"not http at all\r\n\r\n",
        b"HTTP/1.1 200 Any\r\nContent-Length: no\r\n\r\n",
        b"\x16\x03\x01",
    ],
)
async def test_what_is_not_http_is_a_failure(head: bytes) -> None:
    async with receiving(head) as receiver:
        got = await post(receiver.url, total_s=2)
    assert (got.status, bool(got.error)) == (0, True)


async def test_nothing_listens() -> None:
    got = await post(f"http://127.0.0.1:{closed_port()}/path-credential")
    assert (got.error, got.cure) == (
        "it cannot be reached (Connection refused)",
        "start the receiver, or correct the address",
    )


async def test_a_name_that_cannot_be_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(*_: object, **__: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", fails)
    assert (await post("http://receiver.example/path")).error == "its name cannot be looked up"


async def test_a_certificate_of_another_authority_is_not_trusted() -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    assert (await post(f"https://127.0.0.1:{port}/")).error == "its certificate is not trusted"
    server.close()


async def test_an_answer_that_repeats_the_address_is_shown_without_it() -> None:
    async with receiving() as receiver:
        receiver.answers = [answer(404, f"no such hook\x1b[2J: {receiver.url} /hooks/path-credential".encode())]
        got = await post(receiver.url)
    assert got.body == "no such hook [2J: ... ..."


# Signatures are those of Standard Webhooks, also for receivers that verify with other code; a wrong secret is one clear line.
BODY = b'{"test": 2432232314}'


def test_the_example_of_the_specification_is_signed_the_same() -> None:
    signature = sign([KEY], "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, BODY)
    assert signature == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_a_secret_is_made_once_and_kept_from_others(tmp_path: Path) -> None:
    config = Config(data=str(tmp_path))
    (key,) = secrets_of(config)
    file = tmp_path / "alerts.secret"
    assert len(key) == 32
    assert b64decode(file.read_text().strip().removeprefix("whsec_")) == key
    assert file.stat().st_mode & 0o777 == 0o600
    assert secrets_of(config) == (key,)


def test_the_environment_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, SECRET)
    assert secrets_of(Config(data=str(tmp_path))) == (KEY,)
    assert list(tmp_path.iterdir()) == []


def test_two_secrets_sign_both_while_one_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "alerts.secret").write_text(f"{SECRET}\n{new_secret()}\n")
    keys = secrets_of(Config(data=str(tmp_path)))
    first, second = sign(keys, "msg_1", 1, BODY).split(" ")
    assert (first, second) == (sign(keys[:1], "msg_1", 1, BODY), sign(keys[1:], "msg_1", 1, BODY))


@pytest.mark.parametrize(
    "text",
    [
        "a-secret-of-words-that-is-long",
        "whsec_not/base64/at/all/!!!",
        "whsec_" + b64encode(b"x" * 23).decode(),
        "whsec_" + b64encode(b"x" * 65).decode(),
        f"{SECRET} short",
        " ".join([SECRET] * 5),
    ],
)
def test_anything_else_is_refused_with_a_way_to_make_one(tmp_path: Path, text: str) -> None:
    (tmp_path / "alerts.secret").write_text(text)
    with pytest.raises(Misconfigured) as refused:
        secrets_of(Config(data=str(tmp_path)))
    assert "openssl rand" in str(refused.value)
    assert text not in str(refused.value)
    assert str(refused.value).isprintable()
