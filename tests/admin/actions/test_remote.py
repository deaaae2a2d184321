"""An HTTP client of actions does what a local one does, with the same errors; any other answer is told in a sentence."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

import pytest
from aiohttp import web

from gateway.admin.actions import accounts, management_tokens, money, remote, tokens, usage
from gateway.admin.actions.accounts import AccountChange, AccountQuery, NewAccount
from gateway.admin.actions.action import ActionClient, Actor, Scope
from gateway.admin.actions.local import LocalClient
from gateway.admin.actions.management_tokens import ManagementTokens, NewManagementToken
from gateway.admin.actions.money import NewAdjustment, NewCredit
from gateway.admin.actions.remote import FeedElsewhere, HttpClient
from gateway.admin.actions.tokens import TokenList
from gateway.admin.actions.usage import Followed
from gateway.admin.http.app import KNOWN, Admin, Callers
from gateway.admin.http.port import serving
from gateway.base.errors import GatewayError, Misconfigured, StoreAway
from gateway.metrics.exporter import Exporter
from gateway.server.routes import KNOWN_PATHS
from gateway.store.pepper import VARIABLE

TOKEN: Final = "an-admin-token-of-31-characters"

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


def app_of(local_client: LocalClient) -> Admin:
    def client_of(actor: Actor, key: str) -> LocalClient:
        return LocalClient(local_client.loaded, local_client.store, actor, key)

    callers = Callers(lambda: TOKEN, ManagementTokens(local_client.store.client))
    return Admin(callers, Exporter({}), client_of)


@pytest.fixture(autouse=True)
def pepper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "p" * 40)


@pytest.fixture
async def address(local_client: LocalClient) -> AsyncIterator[str]:
    """The address of an API that works with the store of `local_client`."""
    async with serving(app_of(local_client).application(), "127.0.0.1:0") as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
async def elsewhere(address: str) -> AsyncIterator[HttpClient]:
    async with HttpClient.open(address, TOKEN) as http_client:
        yield http_client


@asynccontextmanager
async def answering(handler: Handler) -> AsyncIterator[HttpClient]:
    """Yield a client of an address where something else answers."""
    runner = web.ServerRunner(web.Server(handler))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        async with HttpClient.open(f"http://127.0.0.1:{runner.addresses[0][1]}", TOKEN) as http_client:
            yield http_client
    finally:
        await runner.cleanup()


async def error_of(work: Awaitable[Any]) -> tuple[str, str]:
    with pytest.raises(GatewayError) as caught:
        await work
    return caught.value.kind, str(caught.value)


@pytest.mark.parametrize(
    "work",
    [
        lambda client: accounts.read(client, "nobody"),
        lambda client: accounts.read(client, ""),
        lambda client: accounts.read(client, "../accounts"),
        lambda client: accounts.read(client, "a{b}c?d=e#f%2F\n"),
        lambda client: accounts.close(client, ".."),
        lambda client: accounts.create(client, body=NewAccount("taken")),
        lambda client: accounts.create(client, body=NewAccount("alice", group="nowhere")),
        lambda client: accounts.change(client, "closed", body=AccountChange(status="active")),
        lambda client: money.credit(client, "taken", body=NewCredit("t", 2)),
        lambda client: money.adjust(client, "nobody", body=NewAdjustment("t", 2, "why")),
        lambda client: tokens.read(client, "taken-00000000"),
        lambda client: tokens.read(client, "no token"),
        lambda client: tokens.list_all(client, query=TokenList(after="x")),
        lambda client: management_tokens.revoke(client, "none"),
    ],
)
async def test_an_error_there_has_the_words_and_the_kind_of_the_one_here(
    local_client: LocalClient, elsewhere: HttpClient, work: Callable[[ActionClient], Awaitable[Any]]
) -> None:
    for account in ("taken", "closed"):
        await accounts.create(local_client, body=NewAccount(account))
    await accounts.close(local_client, "closed")
    await money.credit(local_client, "taken", body=NewCredit("t", 1))
    with pytest.raises(GatewayError) as here:
        await work(local_client)
    kind, words = await error_of(work(elsewhere))
    told = str(here.value)
    assert words == told[:1].lower() + told[1:].removesuffix(".")
    assert kind == here.value.kind


async def test_a_feed_tells_of_a_wrong_token(address: str, elsewhere: HttpClient) -> None:
    assert isinstance(await usage.live(elsewhere, query=Followed()), FeedElsewhere)
    async with HttpClient.open(address, "wrong") as nobody:
        feed = await usage.live(nobody, query=Followed())
        assert isinstance(feed, FeedElsewhere)
        with pytest.raises(Misconfigured, match="does not accept"):
            await anext(feed.records())


async def test_a_token_without_the_scope_is_told_so(local_client: LocalClient, address: str) -> None:
    made = await management_tokens.create(local_client, body=NewManagementToken("reader", (Scope.READ,)))
    async with HttpClient.open(address, f" {made.token}\n") as reader:
        await accounts.list_(reader, query=AccountQuery())
        assert "needs the scope `accounts`" in (await error_of(accounts.create(reader, body=NewAccount("alice"))))[1]
    async with HttpClient.open(address, "wrong") as nobody:
        kind, words = await error_of(accounts.list_(nobody, query=AccountQuery()))
    assert kind == "misconfigured"
    assert "does not accept the token in $GATEWAY_API_TOKEN" in words
    assert "wrong" not in words


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        *(("", "give the address"), (" ", "give the address"), ("10.0.0.5:9090", "give the address")),
        *(("ftp://host", "give the address"), ("http://", "give the address")),
        *(("http://host:99999", "give the address"), ("http://[::1", "give the address")),
        *(("http://user:secret@host", "the address alone"), ("http://host?a=b", "the address alone")),
    ],
)
async def test_what_is_no_address_is_refused(url: str, reason: str) -> None:
    with pytest.raises(Misconfigured, match=reason) as caught:
        async with HttpClient.open(url, TOKEN):
            pass
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("token", ["", "  ", "two words", "line\nbreak", "schlüssel", "\x00"])
async def test_what_is_no_token_is_refused_and_not_shown(token: str) -> None:
    with pytest.raises(Misconfigured, match="GATEWAY_API_TOKEN") as caught:
        async with HttpClient.open("http://127.0.0.1:1", token):
            pass
    assert not token.strip() or token not in str(caught.value)


async def test_the_prefix_may_be_given_with_the_address(address: str) -> None:
    for url in (f"{address}/", f"{address}/api/v1", f"{address}/api/v1/"):
        async with HttpClient.open(url, TOKEN) as http_client:
            assert (await accounts.list_(http_client, query=AccountQuery())).data == []


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda: web.Response(text="<html>hello"), "not as the operator's port"),
        (lambda: web.json_response([1]), "not as the operator's port"),
        (lambda: web.json_response({"error": "no"}, status=404), "not as the operator's port"),
        (lambda: web.Response(status=500), "not as the operator's port"),
        (lambda: web.Response(status=204), "not as the operator's port"),
        (lambda: web.Response(status=302, headers={"Location": "http://127.0.0.1:1/"}), "sends on to another"),
        (
            lambda: web.json_response({"error": {"message": KNOWN, "code": "unknown_path"}}, status=404),
            "another version",
        ),
        (
            lambda: web.json_response({"error": {"message": KNOWN_PATHS, "code": "unknown_path"}}, status=404),
            "give the address of `admin:`",
        ),
    ],
)
async def test_an_answer_that_is_not_ours_is_told_in_a_sentence(
    answer: Callable[[], web.Response], reason: str
) -> None:
    async def handler(_: web.BaseRequest) -> web.Response:
        return answer()

    async with answering(handler) as http_client:
        kind, words = await error_of(accounts.list_(http_client, query=AccountQuery()))
    assert kind == "misconfigured"
    assert reason in words
    assert TOKEN not in words


async def test_an_answer_that_is_too_long_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "MAX_ANSWER", 1000)

    async def handler(_: web.BaseRequest) -> web.Response:
        return web.Response(text="x" * 100_000)

    async with answering(handler) as http_client:
        assert "answers with more than" in (await error_of(accounts.list_(http_client, query=AccountQuery())))[1]


async def test_a_lost_answer_is_asked_for_again_with_the_same_key() -> None:
    seen: list[str | None] = []
    booked = {"account": "a", "transaction": "t", "amount_micros": 1, "balance_micros": 1, "booked_before": False}

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        seen.append(request.headers.get("Idempotency-Key"))
        if len(seen) % 2:
            assert request.transport is not None
            request.transport.abort()
        if request.method == "GET":
            return web.json_response({"data": []})
        return web.json_response(booked)

    async with answering(handler) as http_client:
        assert (await accounts.list_(http_client, query=AccountQuery())).data == []
        assert (await money.credit(http_client, "alice", body=NewCredit("t", 1))).balance_micros == 1
    reads, writes = seen[:2], seen[2:]
    assert reads == [None, None]
    assert writes[0] == writes[1] is not None


async def test_two_lost_answers_end_it_and_say_what_is_not_known() -> None:
    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async with answering(handler) as http_client:
        kind, words = await error_of(accounts.list_(http_client, query=AccountQuery()))
        assert (kind, "not known" in words) == ("store_away", False)
        kind, words = await error_of(money.credit(http_client, "alice", body=NewCredit("t", 1)))
        assert (kind, "Whether the change was made is not known" in words) == ("store_away", True)


async def test_nothing_that_listens_and_nothing_that_answers_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        free = f"http://127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setattr(remote, "ANSWER_S", 0.2)
        async with HttpClient.open(free, TOKEN) as http_client:
            assert "nothing came within 0.2 s" in (await error_of(accounts.list_(http_client, query=AccountQuery())))[1]
    async with HttpClient.open(free, TOKEN) as http_client:
        with pytest.raises(StoreAway, match="does not answer"):
            await accounts.list_(http_client, query=AccountQuery())


async def test_a_write_that_another_attempt_has_begun_is_waited_for() -> None:
    answers = [409, 409, 204]

    async def handler(_: web.BaseRequest) -> web.Response:
        status = answers.pop(0)
        if status == 204:
            return web.Response(status=204)
        return web.json_response({"error": {"message": "Wait.", "code": "idempotency_key_in_use"}}, status=status)

    async with answering(handler) as http_client:
        await tokens.delete(http_client, "alice-00000000")
    assert answers == []


async def test_a_client_of_a_gateway_whose_store_is_away_says_so(local_client: LocalClient) -> None:
    async with AsyncExitStack() as stack:
        port = await stack.enter_async_context(serving(app_of(local_client).application(), "127.0.0.1:0"))
        there = await stack.enter_async_context(HttpClient.open(f"http://127.0.0.1:{port}", TOKEN))

        def away(*_: object) -> asyncio.Future[Any]:
            failed: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            failed.set_exception(StoreAway("not there"))
            return failed

        local_client.store.client.submit = away  # type: ignore[method-assign]
        for work in (accounts.list_(there, query=AccountQuery()), accounts.create(there, body=NewAccount("alice"))):
            assert await error_of(work) == ("store_away", "the store does not answer: try again")
