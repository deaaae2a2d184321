"""What a response that is no stream means for the caller, for the next candidate and for the channel."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.proxy import failure
from gateway.proxy.failure import of_answer

JSON = {"Content-Type": "application/json"}
KEYS = ("key-one", "key-two")


def body(**error: Any) -> bytes:
    return json.dumps({"error": error}).encode()


@pytest.mark.parametrize("status", [400, 404, 405, 409, 413, 415, 422])
def test_a_callers_mistake_is_passed_on_and_final(status: int) -> None:
    result = of_answer(status, JSON, body(message="too long", code="long", param="messages", type="t", more=1), ())
    assert result.final
    assert not result.maybe_billed
    error = result.error
    assert (error.status, error.message, error.code, error.param, error.type) == (
        status,
        "too long",
        "long",
        "messages",
        "t",
    )


@pytest.mark.parametrize(
    ("headers", "text"),
    [
        ({"Content-Type": "text/html"}, b"<p>page"),
        (JSON, b"{"),
        (JSON, b"[]"),
        (JSON, b'{"error": {}}'),
        (JSON, b'{"error": {"message": 5}}'),
        (JSON, b"[" * 100_000),
    ],
)
@pytest.mark.parametrize(("status", "code"), [(400, "upstream_refused"), (413, "body_too_large")])
def test_a_callers_mistake_without_a_usable_message_keeps_its_status(
    headers: dict[str, str], text: bytes, status: int, code: str
) -> None:
    result = of_answer(status, headers, text, ())
    assert result.final
    assert (result.error.status, result.error.code) == (status, code)
    assert "page" not in result.error.message


@pytest.mark.parametrize("text", [b'{"error": "no such model"}', b'{"message": "no such model", "object": "error"}'])
def test_other_error_shapes_are_understood(text: bytes) -> None:
    assert of_answer(404, JSON, text, ()).error.message == "no such model"


QUOTA = [
    {"code": "insufficient_quota", "type": "insufficient_quota"},
    {"code": "billing_hard_limit_reached"},
    {"type": "exceeded_current_quota_error"},
    {"code": "1113"},
]


SPENT = [
    *((429, error) for error in QUOTA),
    (402, {"code": "insufficient_credits"}),
    (402, {"message": "Insufficient Balance"}),
    (402, {"message": "You have insufficient credits. Add more."}),
    (402, {"message": "Your account is out of credits"}),
    (400, {"message": "Your credit balance is too low to access the Anthropic API. Please buy credits."}),
]


@pytest.mark.parametrize(("status", "error"), SPENT)
def test_an_answer_that_nothing_is_left_to_spend_is_about_the_credential(status: int, error: dict[str, str]) -> None:
    result = of_answer(status, JSON, body(**error), KEYS)
    assert (result.spent, result.credential_refused, result.final) == (True, True, False)


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (
            402,
            "This request requires more credits, or fewer max_tokens. You requested 9000 tokens, but can only afford 12.",
        ),
        (400, "messages.0.role: `Your credit balance is too low` is none of user, assistant"),
        (429, "You exceeded your current quota"),
        (402, "The prompt 'we have insufficient funds' needs 9000 tokens, of which you can afford 12."),
    ],
)
def test_what_a_request_can_cause_spends_no_credential(status: int, message: str) -> None:
    assert not of_answer(status, JSON, body(message=message), KEYS).spent


@pytest.mark.parametrize(("status", "error"), [(401, {}), *SPENT])
def test_an_error_about_the_credential_is_not_shown(status: int, error: dict[str, str]) -> None:
    error = {"message": "key-one is bad"} | error
    result = of_answer(status, {**JSON, "Retry-After": "1"}, body(**error), KEYS)
    assert result.credential_refused
    assert not result.final
    assert (result.error.status, result.error.code) == (502, "upstream_auth_failed")
    assert (result.error.should_retry, result.error.retry_after_s) == (False, None)
    assert error["message"] not in result.error.message
    assert "bad" not in result.error.message
    assert error["message"].replace("key-one", "[redacted]") == result.said.message


@pytest.mark.parametrize(
    ("message", "starting"),
    [
        ("Loading model", True),
        ("Model gpt2 is currently loading", True),
        ("The server is not ready yet. Please try again in 20 seconds.", True),
        ("The model is warming up.", True),
        ("No worker for the prompt 'why is it loading'", False),
        ("The model is not ready for `Loading model`: it takes no pictures", False),
        ("", False),
    ],
)
def test_an_upstream_is_starting_where_it_says_nothing_else(message: str, starting: bool) -> None:
    assert of_answer(503, JSON, body(message=message, type="unavailable_error"), KEYS).starting == starting


@pytest.mark.parametrize(
    "spelt", ["%6Bey-one", "key%2done", "%6b%65%79%2d%6f%6e%65", "key-one", "%256Bey-one%6bey-one"]
)
def test_a_credential_with_letters_as_an_address_has_them_is_not_shown(spelt: str) -> None:
    shown = of_answer(400, JSON, body(message=f"No such key: {spelt}, 100 % sure"), KEYS).error.message
    assert shown.endswith("[redacted], 100 % sure")
    assert of_answer(400, JSON, body(message="a%20b is 100 % wrong"), KEYS).error.message == "a%20b is 100 % wrong"


PAGE = b" " * (4096 - 12) + b"zebra-password-kangaroo" + b" and more" * 9


def test_a_credential_at_the_end_of_what_is_read_is_not_kept() -> None:
    assert "zebra" not in str(failure.words_of({}, PAGE, ["zebra-password-kangaroo"]))


@pytest.mark.parametrize(
    ("text", "message", "code"),
    [
        (body(message="Incorrect key: sk-0123456789abcdef", code="bad\nkey"), "Incorrect key: [hidden]", "bad key"),
        (body(message="no " * 200), ("no " * 200)[:300].rstrip(), ""),
        (b"<html><style>b {}</style><h1>502</h1> Bad\tgateway", "502 Bad gateway", ""),
        (b"upstream is \x1b[31m gone", "upstream is \\x1b[31m gone", ""),
        (b"", "", ""),
    ],
)
def test_the_upstreams_own_words_are_kept_for_operators(text: bytes, message: str, code: str) -> None:
    said = of_answer(500, JSON, text, KEYS).said
    assert (said.message.rstrip(), said.code) == (message, code)


TOO_LONG = [
    (400, {"code": "context_length_exceeded", "message": "Too much."}),
    (400, {"message": "This model's maximum context length is 8192 tokens. However, your messages have 9001 tokens."}),
    (400, {"message": "prompt is too long: 210018 tokens > 200000 maximum"}),
    (400, {"message": "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000"}),
    (400, {"message": "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576)."}),
    (
        400,
        {
            "message": "Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 maximum context length"
        },
    ),
    (400, {"message": "Input is too long for requested model."}),
    (400, {"message": "This model's maximum prompt length is 131072 but the request contains 200000 tokens."}),
    (400, {"message": "too many tokens: total number of tokens in the prompt cannot exceed 4081"}),
    (422, {"message": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 8193."}),
    (400, {"message": "The decoder prompt (length 5000) is longer than the maximum model length of 4096."}),
    (400, {"message": "The input (5000 tokens) is longer than the model's context length (4096 tokens)."}),
    (400, {"type": "exceed_context_size_error", "message": "the request exceeds the available context size"}),
    (400, {"message": "the input length exceeds the context length"}),
]


@pytest.mark.parametrize(("status", "error"), TOO_LONG)
def test_a_prompt_that_is_too_long_may_be_served_by_another_model(status: int, error: dict[str, str]) -> None:
    result = of_answer(status, JSON, body(**error), KEYS)
    assert (result.final, result.too_long, result.may_fall_back) == (True, True, True)


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (400, "max_tokens is too large"),
        (422, "messages is too short"),
        (404, "no such model"),
        (403, "flagged"),
        (413, ""),
    ],
)
def test_no_other_model_serves_what_an_upstream_has_judged(status: int, message: str) -> None:
    assert not of_answer(status, JSON, body(message=message), KEYS).may_fall_back


@pytest.mark.parametrize("status", [402, 403])
def test_a_402_or_403_may_be_about_the_request(status: int) -> None:
    result = of_answer(status, JSON, body(message="flagged by key-one"), KEYS)
    assert result.forbidden
    assert not (result.credential_refused or result.not_the_request or result.final)
    assert result.cool_s is None
    assert (result.error.code, result.error.should_retry) == ("upstream_auth_failed", False)
    assert "flagged" not in result.error.message


def test_a_407_is_the_proxys() -> None:
    result = of_answer(407, JSON, body(message="who are you"), KEYS)
    assert result.not_the_request
    assert not (result.credential_refused or result.forbidden or result.final)
    assert (result.error.status, result.error.code) == (502, "upstream_unreachable")


@pytest.mark.parametrize("status", [400, 409, 413, 418, 429, 500, 502, 503, 504, 529])
@pytest.mark.parametrize(("advice", "should_retry"), [("false", False), ("TRUE", True), ("", None), ("no", None)])
def test_the_upstreams_advice_is_passed_on(status: int, advice: str, should_retry: bool | None) -> None:
    result = of_answer(status, {**JSON, "x-should-retry": advice, "Retry-After": "30"}, b"{}", ())
    assert result.error.should_retry is should_retry
    assert result.error.retry_after_s == (None if result.final else 30)


@pytest.mark.parametrize(
    ("status", "header", "cool_s"),
    [
        (429, "7", 7),
        (429, "", 0),
        (429, "3600", 3600),
        (429, "-1", 0),
        (429, "1e9", 0),
        (429, "9" * 400, 0),
        (429, "Wed, 21 Oct 2026 07:28:00 GMT", 0),
        (529, "", 0),
        (529, "3", 3),
        (503, "30", 30),
        (503, "", None),
        (500, "", None),
    ],
)
def test_the_cool_down_follows_status_and_retry_after(status: int, header: str, cool_s: float | None) -> None:
    result = of_answer(status, {**JSON, "Retry-After": header}, b"{}", ())
    assert result.cool_s == cool_s
    assert result.error.status == (429 if status == 429 else 502)


def test_no_credential_of_the_channel_is_passed_on() -> None:
    text = body(message="key-two, key-one", code="key-one", param="key-two", type="key-one")
    error = of_answer(400, JSON, text.replace(b"\\\\u", b"\\u"), KEYS).error
    assert "key-" not in f"{error.message} {error.code} {error.param} {error.type}"
    assert failure.of_event(body(message="it was key-two"), KEYS).error.message.endswith("it was [redacted]")


def test_a_long_message_is_truncated_after_redaction() -> None:
    error = of_answer(400, JSON, body(message="x" * 1995 + "key-one" + "y" * 5000), KEYS).error
    assert len(error.message) == 2000
    assert "key" not in error.message
