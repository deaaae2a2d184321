"""Errors as a caller receives them: what they have in common, and what single ones say beside their code.

Each code of the README's table is provoked in test_usage_outcomes.py.
"""

from __future__ import annotations

from typing import Any

import pytest

from gateway.fake_upstream import FakeUpstream
from gateway.testing import Running
from tests.whole.raw import Answer, ask, chat, get


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


async def test_a_gateway_that_closes_refuses_requests(gateway: Running) -> None:
    gateway.gateway.closing = True
    answer = await chat_with(gateway, await gateway.token())
    assert_error(answer, 503, "service_error", "service_unavailable")
    assert answer.headers["connection"] == "close"


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        *(("GET", "/v1/chat/completions", "POST"), ("DELETE", "/v1/models", "GET")),
        *(("PUT", "/v1/requests/1", "GET"), ("POST", "/v1/requests", "GET")),
        ("DELETE", "/v1/account/ledger", "GET"),
    ],
)
async def test_another_method_on_a_known_path_is_refused(
    gateway: Running, method: str, path: str, allowed: str
) -> None:
    answer = await ask(gateway.port, get(path, method=method))
    assert_error(answer, 405, "invalid_request_error", "method_not_allowed")
    assert answer.headers["allow"] == ("GET, HEAD" if allowed == "GET" else allowed)
