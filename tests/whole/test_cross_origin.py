"""Pages of the origins that the operator names may call the public port; a preflight request costs neither a record nor a call."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from gateway.fake_upstream import FakeUpstream
from gateway.proxy.failover import SERVED_MODEL
from gateway.server.cors import READABLE, CrossOriginGateway
from gateway.server.gateway import NOT_NAMED
from gateway.testing import Running
from tests.whole.aftermath import end_records, last_end_record, records_in_stream
from tests.whole.conftest import Serve
from tests.whole.raw import Answer, ask, chat, get, head

PAGE = "https://app.example"
CHAT = "/v1/chat/completions"


@pytest.fixture
async def gateway(upstream: FakeUpstream, serve: Serve) -> AsyncIterator[Running]:
    async with serve(upstream.base_url, more=f"port: {{cors_origins: ['{PAGE}', 'http://localhost:5173']}}") as whole:
        yield whole


@pytest.fixture
async def closed(upstream: FakeUpstream, serve: Serve) -> AsyncIterator[Running]:
    """Yield a gateway that names no origin."""
    async with serve(upstream.base_url) as whole:
        yield whole


def preflight(path: str = CHAT, origin: str = PAGE, **more: str) -> bytes:
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}
    return head("OPTIONS", path, {"Host": "gateway", "Origin": origin, **asked, **more})


def assert_readable(answer: Answer, origin: str = PAGE) -> None:
    assert answer.headers["access-control-allow-origin"] == origin
    assert answer.headers["access-control-expose-headers"] == READABLE
    assert answer.headers["vary"] == "Origin"
    assert "access-control-allow-credentials" not in answer.headers


def assert_unreadable(answer: Answer) -> None:
    assert [name for name in answer.headers if name.startswith("access-control-")] == []


async def test_a_preflight_of_a_named_origin_is_granted_without_a_record(gateway: Running) -> None:
    for origin in (PAGE, "http://localhost:5173"):
        for path in (CHAT, "/v1/models", "/v1/responses"):
            answer = await ask(gateway.port, preflight(path, origin))
            assert (answer.status, answer.body) == (200, b"")
            assert answer.headers["access-control-allow-origin"] == origin
            assert answer.headers["access-control-allow-methods"] == "GET, POST"
            assert answer.headers["access-control-allow-headers"].startswith("authorization, ")
            assert answer.headers["vary"] == "Origin"
            assert int(answer.headers["access-control-max-age"]) > 0
    assert await records_in_stream(gateway) == []


@pytest.mark.parametrize("origin", ["https://other.example", "https://app.example.evil", "null", "http://app.example"])
async def test_a_preflight_of_another_origin_is_refused_without_a_record(gateway: Running, origin: str) -> None:
    answer = await ask(gateway.port, preflight(origin=origin))
    assert (answer.status, answer.error["code"], answer.error["message"]) == (405, "method_not_allowed", NOT_NAMED)
    assert_unreadable(answer)
    assert answer.headers["vary"] == "Origin"
    assert await records_in_stream(gateway) == []


async def test_without_the_setting_a_preflight_is_refused_without_a_record(closed: Running) -> None:
    for path in (CHAT, "/v1/models", "/v1/nothing", "/nothing"):
        answer = await ask(closed.port, preflight(path))
        assert (answer.status, answer.error["code"], answer.error["message"]) == (405, "method_not_allowed", NOT_NAMED)
        assert_unreadable(answer)
        assert "vary" not in answer.headers
    assert await records_in_stream(closed) == []


async def test_without_the_setting_no_answer_is_for_a_page(closed: Running) -> None:
    assert type(closed.gateway) is not CrossOriginGateway
    answer = await ask(closed.port, chat(await closed.token(), headers={"Origin": PAGE}))
    assert answer.status == 200
    assert_unreadable(answer)


async def test_what_only_looks_like_a_preflight_leaves_a_record(gateway: Running) -> None:
    for request in (get(CHAT, method="OPTIONS"), head("OPTIONS", CHAT, {"Host": "gateway", "Origin": PAGE})):
        assert (await ask(gateway.port, request)).status == 405
    await last_end_record(gateway)
    assert len({record.id for record in await end_records(gateway)}) == 2


async def test_a_preflight_with_a_body_is_refused(gateway: Running) -> None:
    assert (await ask(gateway.port, preflight(**{"Content-Length": "2"}) + b"{}")).status == 405


async def test_a_stream_its_headers_and_an_error_can_be_read_by_the_page(gateway: Running) -> None:
    token = await gateway.token()
    answer = await ask(gateway.port, chat(token, headers={"Origin": PAGE}))
    assert (answer.status, answer.body[-14:]) == (200, b"data: [DONE]\n\n")
    assert_readable(answer)
    assert {"x-request-id", "x-ratelimit-remaining-requests"} <= set(READABLE.split(", ")) & set(answer.headers)
    assert SERVED_MODEL in READABLE.split(", ")
    for request in (
        chat(None, headers={"Origin": PAGE}),
        chat(token, {"model": "none"}, headers={"Origin": PAGE}),
        chat(token, b"no json", headers={"Origin": PAGE}),
        chat(token, headers={"Origin": PAGE}, path="/v1/responses"),
        chat(token, headers={"Origin": PAGE}, path="/nothing"),
        chat(token, headers={"Origin": PAGE, "x-long": "x" * 60000, "x-longer": "x" * 60000}),
    ):
        answer = await ask(gateway.port, request)
        assert answer.status >= 400
        assert_readable(answer)


async def test_a_page_of_another_origin_cannot_read_its_answer(gateway: Running) -> None:
    token = await gateway.token()
    for headers in ({"Origin": "https://other.example"}, {}):
        answer = await ask(gateway.port, chat(token, headers=headers))
        assert answer.status == 200
        assert_unreadable(answer)
        assert answer.headers["vary"] == "Origin", "caches keep it for no other origin"


async def test_preflights_are_answered_one_after_the_other_on_one_connection(gateway: Running) -> None:
    answer = await ask(gateway.port, preflight() + preflight() + chat(await gateway.token(), headers={"Origin": PAGE}))
    assert answer.status == 200
    assert answer.headers.get("connection") != "close"
