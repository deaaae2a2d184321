"""The error table, row by row, as a caller receives it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from gateway.fake_upstream import FakeUpstream
from gateway.store.accounts import AccountStatus
from gateway.store.client.client import Client
from gateway.store.tokens import TokenStatus
from gateway.testing import Running, running
from tests.patience import wait_until
from tests.whole.conftest import CHAIN, configuration
from tests.whole.raw import Answer, ask, chat, get, head

INVALID_TOKEN = "sk-tester-abcdefgh-0000000000000000000000000000"


def assert_error(
    answer: Answer, status: int, kind: str, code: str, *, param: str | None = None, details: set[str] | None = None
) -> dict[str, Any]:
    """Assert the common error shape, with the header's request id and without unwanted headers. Return the error.

    `details`: the names of its further fields.
    """
    assert (answer.status, answer.error["type"], answer.error["code"]) == (status, kind, code), answer.body
    assert set(answer.error) == {"message", "type", "param", "code", "request_id"} | (details or set())
    assert answer.error["param"] == param
    assert answer.error["message"]
    assert answer.error["request_id"] == answer.headers["x-request-id"]
    assert not {"server", "set-cookie", "access-control-allow-origin"} & set(answer.headers)
    return answer.error


async def chat_with(gateway: Running, token: str | None, body: Any = None, **more: Any) -> Answer:
    return await ask(gateway.port, chat(token, body, **more))


# The token.


async def test_a_missing_token_is_refused(gateway: Running) -> None:
    answer = await chat_with(gateway, None)
    assert_error(answer, 401, "authentication_error", "token_missing")
    assert answer.headers["www-authenticate"] == "Bearer"


async def test_an_unknown_token_is_refused(gateway: Running) -> None:
    assert_error(await chat_with(gateway, INVALID_TOKEN), 401, "authentication_error", "token_invalid")


async def test_a_deleted_token_is_refused(gateway: Running) -> None:
    token = await gateway.token()
    (known,) = await gateway.store.tokens.all_of("tester")
    await gateway.store.tokens.delete(known.id)
    assert_error(await chat_with(gateway, token), 401, "authentication_error", "token_invalid")


async def test_an_expired_token_is_refused(gateway: Running) -> None:
    await gateway.token()
    created = await gateway.store.tokens.create("tester", expires_at=1)
    assert_error(await chat_with(gateway, created.token), 401, "authentication_error", "token_expired")


async def test_a_disabled_token_is_refused(gateway: Running) -> None:
    token = await gateway.token()
    (known,) = await gateway.store.tokens.all_of("tester")
    await gateway.store.tokens.set_status(known.id, TokenStatus.DISABLED)
    assert_error(await chat_with(gateway, token), 401, "authentication_error", "token_disabled")


# The account, its group, the token's restrictions.


@pytest.mark.parametrize("status", [AccountStatus.SUSPENDED, AccountStatus.CLOSED])
async def test_an_inactive_account_is_refused(gateway: Running, status: AccountStatus) -> None:
    token = await gateway.token()
    await gateway.store.accounts.set_status("tester", status)
    assert_error(await chat_with(gateway, token), 403, "permission_error", "account_inactive")


@pytest.mark.parametrize("group", ["closed", "unheardof"])
async def test_a_disabled_or_unknown_group_is_refused(gateway: Running, group: str) -> None:
    token = await gateway.token(group=group)
    assert_error(await chat_with(gateway, token), 403, "permission_error", "group_forbidden")


async def test_a_model_outside_the_tokens_list_is_refused(gateway: Running) -> None:
    await gateway.token()
    created = await gateway.store.tokens.create("tester", models=("other",))
    answer = await chat_with(gateway, created.token)
    assert_error(answer, 403, "permission_error", "token_restricted", param="model")


async def test_an_address_outside_the_tokens_list_is_refused(gateway: Running) -> None:
    await gateway.token()
    created = await gateway.store.tokens.create("tester", addresses=("10.0.0.0/8",))
    assert_error(await chat_with(gateway, created.token), 403, "permission_error", "token_restricted")


# The model, the money, the limits.


@pytest.mark.parametrize("model", ["no-such-model", "hidden"])
async def test_an_unknown_or_unavailable_model_is_not_found(gateway: Running, model: str) -> None:
    answer = await chat_with(gateway, await gateway.token(), {"model": model})
    assert_error(answer, 404, "invalid_request_error", "model_not_found", param="model")


async def test_too_low_a_balance_is_refused(gateway: Running) -> None:
    token = await gateway.token(credit=1)
    answer = await chat_with(gateway, token)
    figures = {"needed_micros", "available_micros", "max_tokens_that_fit"}
    error = assert_error(answer, 402, "insufficient_quota", "insufficient_balance", details=figures)
    assert "retry-after" not in answer.headers
    assert (error["available_micros"], error["max_tokens_that_fit"]) == (1, 0)
    assert "that is 0.00" in error["message"]
    assert "and 0.000001 is left" in error["message"]


async def test_a_request_with_the_max_tokens_that_a_402_names_is_served_and_with_some_more_is_not(
    gateway: Running,
) -> None:
    token = await gateway.token(credit=2000)
    refused = (await chat_with(gateway, token, {"max_tokens": 5000})).error
    fits = refused["max_tokens_that_fit"]
    assert 0 < fits < 5000
    assert f"lower max_tokens to {fits}." in refused["message"]
    assert refused["needed_micros"] > refused["available_micros"] == 2000
    more = (await chat_with(gateway, token, {"max_tokens": fits + 10})).error  # a shorter body holds a few tokens less
    assert (more["code"], fits <= more["max_tokens_that_fit"] < fits + 10) == ("insufficient_balance", True)
    assert (await chat_with(gateway, token, {"max_tokens": fits})).status == 200


async def test_the_right_to_a_model_is_judged_before_the_money(gateway: Running) -> None:
    await gateway.token(credit=1)
    created = await gateway.store.tokens.create("tester", models=("no-other",))
    answer = await chat_with(gateway, created.token)
    assert_error(answer, 403, "permission_error", "token_restricted", param="model")
    answer = await chat_with(gateway, created.token, {"model": "hidden"})
    assert_error(answer, 404, "invalid_request_error", "model_not_found", param="model")


async def test_a_request_beyond_the_rate_limit_is_refused(
    upstream: FakeUpstream, store_url: str, client: Client, tmp_path: Path
) -> None:
    chain = CHAIN.replace("requests_per_minute: 1000", "requests_per_minute: 1")
    async with running(configuration(upstream.base_url, chain=chain), tmp_path, store_url) as gateway:
        token = await gateway.token()
        assert (await chat_with(gateway, token)).status == 200
        answer = await chat_with(gateway, token)
    error = assert_error(answer, 429, "rate_limit_error", "rate_limited")
    assert "limit" in error["message"]
    assert 1 <= int(answer.headers["retry-after"]) <= 59
    assert 1 <= int(answer.headers["retry-after-ms"]) <= 59_000


async def test_a_request_beyond_the_concurrency_limit_is_refused(
    upstream: FakeUpstream, store_url: str, client: Client, tmp_path: Path
) -> None:
    upstream.mode = "silent"
    chain = CHAIN.replace("concurrent: 50", "concurrent: 1")
    async with running(configuration(upstream.base_url, chain=chain), tmp_path, store_url) as gateway:
        token = await gateway.token()
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(chat(token))
        await wait_until(lambda: bool(upstream.requests))
        answer = await chat_with(gateway, token)
        writer.close()
    assert_error(answer, 429, "rate_limit_error", "too_many_concurrent")
    assert answer.headers["retry-after"]
    del reader


# The upstream, before the first byte.


@pytest.mark.parametrize(
    ("mode", "status", "code"),
    [
        ("500", 502, "upstream_error"),
        ("503", 502, "upstream_error"),
        ("html", 502, "upstream_error"),
        ("json", 502, "upstream_error"),
        ("empty", 502, "upstream_error"),
        ("gzip", 502, "upstream_error"),
        ("redirect", 502, "upstream_error"),
        ("first-error", 502, "upstream_error"),
        ("401", 502, "upstream_auth_failed"),
        ("402", 502, "upstream_auth_failed"),
        ("403", 502, "upstream_auth_failed"),
    ],
)
async def test_an_upstream_failure_is_a_502_and_costs_nothing(
    gateway: Running, upstream: FakeUpstream, mode: str, status: int, code: str
) -> None:
    upstream.mode = mode
    answer = await chat_with(gateway, await gateway.token())
    assert_error(answer, status, "upstream_error", code)
    assert (answer.headers.get("x-should-retry") == "false") == (code == "upstream_auth_failed")
    assert len(upstream.requests) == 1
    await gateway.gateway.runner.wait_ended()
    account = await gateway.store.accounts.get("tester")
    assert account is not None
    assert (account.balance_micros, account.held_micros) == (5_000_000, 0)


async def test_an_upstreams_404_is_passed_on(gateway: Running, upstream: FakeUpstream) -> None:
    upstream.mode = "404"
    answer = await chat_with(gateway, await gateway.token())
    assert answer.status == 404
    assert answer.error["request_id"] == answer.headers["x-request-id"]


async def test_an_upstreams_429_is_passed_on_with_its_retry_after(gateway: Running, upstream: FakeUpstream) -> None:
    upstream.mode = "429"
    answer = await chat_with(gateway, await gateway.token())
    assert_error(answer, 429, "rate_limit_error", "upstream_rate_limited")
    assert answer.headers["retry-after"] == "7"


async def test_an_unreachable_upstream_is_a_502(store_url: str, client: Client, tmp_path: Path) -> None:
    async with running(configuration("http://127.0.0.1:1/v1"), tmp_path, store_url) as gateway:
        answer = await chat_with(gateway, await gateway.token())
    assert_error(answer, 502, "upstream_error", "upstream_unreachable")


async def test_a_silent_upstream_is_a_504(
    upstream: FakeUpstream, store_url: str, client: Client, tmp_path: Path
) -> None:
    upstream.mode = "silent"
    yaml = configuration(upstream.base_url, channel=", timers: {first_byte: 0.2}")
    async with running(yaml, tmp_path, store_url) as gateway:
        answer = await chat_with(gateway, await gateway.token())
    assert_error(answer, 504, "upstream_error", "upstream_timeout")
    assert answer.headers["x-should-retry"] == "false"


# The upstream, after the first byte: one error event after the last whole event, and the connection is closed.


@pytest.mark.parametrize(
    ("mode", "code"),
    [("cut", "upstream_truncated"), ("truncate", "upstream_truncated"), ("stall", "upstream_timeout")],
)
async def test_a_broken_stream_ends_with_an_error_event(
    upstream: FakeUpstream, store_url: str, client: Client, tmp_path: Path, mode: str, code: str
) -> None:
    upstream.mode = mode
    yaml = configuration(upstream.base_url, channel=", timers: {idle: 0.3}")
    async with running(yaml, tmp_path, store_url) as gateway:
        answer = await chat_with(gateway, await gateway.token())
    assert answer.status == 200
    assert not answer.whole
    *events, last, rest = answer.body.split(b"\n\n")
    assert rest == b""
    error = json.loads(last.removeprefix(b"data: "))["error"]
    assert (error["code"], error["type"]) == (code, "upstream_error")
    assert error["request_id"] == answer.headers["x-request-id"]
    assert all(event.startswith((b"data: ", b":")) for event in events)


# The service.


async def test_an_unreachable_store_is_a_503(upstream: FakeUpstream, tmp_path: Path) -> None:
    from gateway.store.embedded import EmbeddedStore

    store = EmbeddedStore.start(tmp_path / "store")
    async with running(configuration(upstream.base_url, store_timeout=0.4), tmp_path, store.url) as gateway:
        token = await gateway.token()
        store.stop()
        answer = await chat_with(gateway, token)
    assert_error(answer, 503, "service_error", "service_unavailable")
    assert answer.headers["retry-after"]
    assert upstream.requests == []


async def test_a_draining_gateway_refuses_requests(gateway: Running) -> None:
    gateway.gateway.draining = True
    answer = await chat_with(gateway, await gateway.token())
    assert_error(answer, 503, "service_error", "service_unavailable")
    assert answer.headers["connection"] == "close"


async def test_a_bug_in_a_plugin_is_a_500(
    upstream: FakeUpstream, store_url: str, client: Client, tmp_path: Path
) -> None:
    broken = CHAIN + "  - use: tests.whole.broken:Broken\n"
    async with running(configuration(upstream.base_url, chain=broken), tmp_path, store_url) as gateway:
        answer = await chat_with(gateway, await gateway.token())
    error = assert_error(answer, 500, "service_error", "internal_error")
    assert error["request_id"] in error["message"]
    assert b"boom" not in answer.body


# The request.


@pytest.mark.parametrize("body", [b"{", b'{"a": NaN}', b"\xff\xfe{"])
async def test_invalid_json_is_refused(gateway: Running, body: bytes) -> None:
    assert_error(await chat_with(gateway, await gateway.token(), body), 400, "invalid_request_error", "invalid_json")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("messages", []),
        ("messages", "hi"),
        ("messages", [{"content": "hi"}]),
        ("temperature", "hot"),
        ("max_tokens", -1),
        ("max_tokens", 1.5),
        ("max_tokens", 10**18),
        ("n", 0),
        ("n", 10**6),
        ("model", ""),
        ("model", 7),
    ],
)
async def test_an_invalid_field_is_refused_by_name(gateway: Running, field: str, value: Any) -> None:
    answer = await chat_with(gateway, await gateway.token(), {field: value})
    assert answer.error["param"].startswith(field)
    assert_error(answer, 400, "invalid_request_error", "invalid_request", param=answer.error["param"])


@pytest.mark.parametrize("value", [False, None, "true", 1])
async def test_a_request_without_streaming_is_refused(gateway: Running, upstream: FakeUpstream, value: Any) -> None:
    answer = await chat_with(gateway, await gateway.token(), {"stream": value})
    error = assert_error(answer, 400, "invalid_request_error", "stream_required", param="stream")
    assert '"stream": true' in error["message"]
    assert upstream.requests == []


async def test_too_large_a_body_is_refused(
    upstream: FakeUpstream, store_url: str, client: Client, tmp_path: Path
) -> None:
    yaml = configuration(upstream.base_url, more="port: {max_body: 100}")
    async with running(yaml, tmp_path, store_url) as gateway:
        answer = await chat_with(gateway, await gateway.token(), b" " * 101)
    assert_error(answer, 413, "invalid_request_error", "body_too_large")


async def test_too_slow_a_body_is_refused(
    upstream: FakeUpstream, store_url: str, client: Client, tmp_path: Path
) -> None:
    yaml = configuration(upstream.base_url, more="port: {body_timeout: 0.2}")
    async with running(yaml, tmp_path, store_url) as gateway:
        answer = await ask(gateway.port, chat(await gateway.token())[:-1])
    assert_error(answer, 408, "invalid_request_error", "body_timeout")


@pytest.mark.parametrize(
    "headers", [{"Content-Type": "text/plain"}, {"Content-Type": ""}, {"Content-Encoding": "gzip"}]
)
async def test_another_media_type_or_encoding_is_refused(gateway: Running, headers: dict[str, str]) -> None:
    answer = await chat_with(gateway, await gateway.token(), headers=headers)
    assert_error(answer, 415, "invalid_request_error", "unsupported_media_type")


# The path.


async def test_the_error_for_a_repeated_v1_says_how_to_fix_it(gateway: Running) -> None:
    answer = await chat_with(gateway, None, path="/v1/v1/chat/completions")
    assert "already ends in /v1" in assert_error(answer, 404, "invalid_request_error", "unknown_path")["message"]


async def test_the_error_for_a_missing_v1_says_how_to_fix_it(gateway: Running) -> None:
    answer = await chat_with(gateway, None, path="/chat/completions")
    assert "must end in /v1" in assert_error(answer, 404, "invalid_request_error", "unknown_path")["message"]


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/v1",
        "/v1/",
        "//v1/models",
        "/v1/Models",
        "/v1/models/",
        "/v1/%6dodels",
        "/v1/chat/completions/",
        "/v2/models",
    ],
)
async def test_an_unknown_path_is_refused(gateway: Running, path: str) -> None:
    assert_error(await ask(gateway.port, get(path)), 404, "invalid_request_error", "unknown_path")


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/v1/chat/completions", "POST"),
        ("DELETE", "/v1/models", "GET"),
        ("PUT", "/v1/requests/1", "GET"),
        ("POST", "/v1/requests", "GET"),
        ("DELETE", "/v1/account/ledger", "GET"),
    ],
)
async def test_another_method_on_a_known_path_is_refused(
    gateway: Running, method: str, path: str, allowed: str
) -> None:
    answer = await ask(gateway.port, get(path, method=method))
    assert_error(answer, 405, "invalid_request_error", "method_not_allowed")
    assert answer.headers["allow"] == ("GET, HEAD" if allowed == "GET" else allowed)


async def test_malformed_http_is_refused(gateway: Running) -> None:
    answer = await ask(gateway.port, head("GET", "/v1/models", {"Bad Name": "x"}))
    assert_error(answer, 400, "invalid_request_error", "invalid_request")
