"""One attempt: what is sent, which answers count as success, and that nothing of a receiver takes more than its time and memory."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
import tracemalloc
from base64 import b64decode

import pytest
import trustme

from gateway.alerts.sender import MAX_SHOWN, Delivery, Webhook
from gateway.alerts.signature import sign
from tests.alerts.receiver import NEVER, OK, SECRET, answer, closed_port, receiving
from tests.patience import PATIENCE_S

KEY = b64decode(SECRET.removeprefix("whsec_"))
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


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
async def test_any_2xx_is_success(status: int) -> None:
    async with receiving(answer(status)) as receiver:
        assert (await post(receiver.url)).error == ""


@pytest.mark.parametrize("status", [400, 401, 404, 405, 410, 429, 500, 503])
async def test_any_other_status_is_not(status: int) -> None:
    async with receiving(answer(status)) as receiver:
        got = await post(receiver.url)
    assert (got.status, got.error) == (status, f"it answered {status}")
    assert got.cure


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
