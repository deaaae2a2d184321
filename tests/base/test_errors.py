"""Every error has one JSON shape, and its headers say whether and when to retry."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.base.errors import Misconfigured, Refused, StoreAway, StoreError, as_refused, headers_of, internal, render


def test_an_error_is_rendered_with_all_five_fields() -> None:
    refused = Refused(400, "invalid_request", "The field n must be 1.", param="n")
    assert json.loads(render(refused, "the-id")) == {
        "error": {
            "message": "The field n must be 1.",
            "type": "invalid_request_error",
            "param": "n",
            "code": "invalid_request",
            "request_id": "the-id",
        }
    }
    assert json.loads(render(Refused(404, "x", "y"), ""))["error"]["param"] is None


def test_details_are_further_fields_of_the_error() -> None:
    refused = Refused(402, "x", "y", details={"needed_micros": 7, "of": "token"})
    error = json.loads(render(refused, "the-id"))["error"]
    assert (error["needed_micros"], error["of"], error["code"], error["request_id"]) == (7, "token", "x", "the-id")


@pytest.mark.parametrize("details", [{"code": 1}, {"request_id": "z"}, {"a": 1.5}, {1: 1}, {"a": None}, ["a"]])
def test_details_that_hide_a_field_or_have_no_form_are_refused(details: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        Refused(402, "x", "y", details=details)


@pytest.mark.parametrize(
    ("status", "type_"),
    [
        *((status, "invalid_request_error") for status in (400, 404, 405, 408, 413, 415, 418)),
        *((401, "authentication_error"), (402, "insufficient_quota"), (403, "permission_error")),
        *((429, "rate_limit_error"), (500, "service_error"), (503, "service_error")),
        *((502, "upstream_error"), (504, "upstream_error")),
    ],
)
def test_the_status_determines_the_type(status: int, type_: str) -> None:
    assert Refused(status, "code", "message").type == type_
    assert Refused(status, "code", "message", type="other_error").type == "other_error"


def test_a_bug_shows_the_caller_only_the_request_id() -> None:
    refused = as_refused(RuntimeError("token sk-canary in a message"))
    body = json.loads(render(refused, "the-id"))["error"]
    assert (refused.status, body["code"]) == (500, "internal_error")
    assert body["message"] == "Internal error. Quote the request id the-id to the operator."
    assert as_refused(StoreError("WRONGTYPE")).code == as_refused(Misconfigured("x")).code == internal().code


def test_an_unavailable_store_is_a_503() -> None:
    refused = as_refused(StoreAway("timeout"))
    assert (refused.status, refused.code) == (503, "service_unavailable")
    assert "timeout" not in render(refused, "the-id").decode()
    assert headers_of(refused) == {"Retry-After": "1", "retry-after-ms": "1000"}


def test_a_refusal_is_not_changed() -> None:
    refused = Refused(403, "closed", "Come back later.")
    assert as_refused(refused) is refused
    assert repr(refused) == "Refused(403, 'closed', 'Come back later.')"


def test_a_401_says_how_to_authenticate() -> None:
    assert headers_of(Refused(401, "token_invalid", "No.")) == {"WWW-Authenticate": "Bearer", "x-should-retry": "false"}


@pytest.mark.parametrize(
    ("wait_s", "seconds", "milliseconds"),
    [
        (0, "1", "1"),
        (0.2, "1", "200"),
        (1, "1", "1000"),
        (1.001, "2", "1001"),
        (58.5, "59", "58500"),
        (59, "59", "59000"),
        (0.0001, "1", "1"),
        (1.0001, "2", "1001"),
    ],
)
def test_the_wait_is_whole_seconds_from_1_to_59_and_exact_in_milliseconds(
    wait_s: float, seconds: str, milliseconds: str
) -> None:
    refused = Refused(429, "rate_limited", "Wait.", retry_after_s=wait_s)
    assert headers_of(refused) == {"Retry-After": seconds, "retry-after-ms": milliseconds}


@pytest.mark.parametrize(
    ("wait_s", "words"),
    [
        (59.5, "60 seconds"),
        (120, "120 seconds"),
        (120.5, "3 minutes"),
        (600, "10 minutes"),
        (7201, "3 hours"),
        (86400, "24 hours"),
        (86401, "more than a day"),
        (251_951_494_399, "more than a day"),
        (1e12, "more than a day"),
    ],
)
def test_a_longer_wait_is_in_the_message_and_client_libraries_are_told_not_to_retry(wait_s: float, words: str) -> None:
    refused = Refused(429, "rate_limited", "Too fast.", retry_after_s=wait_s)
    assert headers_of(refused) == {"Retry-After": "59", "retry-after-ms": "59000", "x-should-retry": "false"}
    assert json.loads(render(refused, "id"))["error"]["message"] == f"Too fast. Retry in {words}."


def test_an_errors_own_headers_and_should_retry_are_sent() -> None:
    refused = Refused(405, "method_not_allowed", "Use POST.", should_retry=False, headers={"Allow": "POST"})
    assert headers_of(refused) == {"Allow": "POST", "x-should-retry": "false"}
    assert headers_of(Refused(409, "conflict", "Again.", should_retry=True)) == {"x-should-retry": "true"}
    assert refused.extra_headers == {"Allow": "POST"}, "the given headers were changed"


def test_a_message_cannot_break_out_of_its_json() -> None:
    hostile = 'a"b\n\x00</script>\u2028'
    assert json.loads(render(Refused(400, "x", hostile), hostile))["error"]["message"] == hostile


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        *(((status, "code", "message"), {}) for status in (None, "429", 429.0, True, 200, 399, 600, -1)),
        *(((429, code, "message"), {}) for code in (None, 7, b"code", "\ud800")),
        *(((429, "code", message), {}) for message in (None, ["m"], "\udfff of an emoji")),
        *(((429, "code", "m"), {name: wrong}) for name in ("type", "param") for wrong in (7, "\ud800")),
        *(((429, "code", "m"), {"retry_after_s": wait}) for wait in (-1, float("nan"), float("inf"), "1")),
        *(((429, "code", "m"), {"headers": headers}) for headers in ([("a", "b")], {"a": 1}, {1: "b"})),
        *(((429, "code", "m"), {"headers": {"a": value}}) for value in ("\ud800", "b\r\nc: d", "\0")),
    ],
    ids=repr,
)
def test_a_refusal_that_no_caller_could_be_sent_is_an_error_where_it_is_made(
    arguments: tuple[Any, ...], options: dict[str, Any]
) -> None:
    with pytest.raises((TypeError, ValueError)):
        Refused(*arguments, **options)
