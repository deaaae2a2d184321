"""Failures of upstreams: what they mean for the caller, the next candidate, the channel and its credentials."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from multidict import CIMultiDict

from gateway.base.errors import Refused
from gateway.proxy import failure
from gateway.proxy.failure import UpstreamFailure, of_answer, retry_after_s
from gateway.proxy.pool import MAX_ACCOUNTS, Credentials
from gateway.proxy.upstream import keep_only_id, kept_id
from gateway.store.channels import SUSPENDED_S, CredentialStates

# What a response that is no stream means for the caller, for the next candidate and for the channel.
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
        *(({"Content-Type": "text/html"}, b"<p>page"), (JSON, b"{"), (JSON, b"[]"), (JSON, b'{"error": {}}')),
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


QUOTA = [
    {"code": "insufficient_quota", "type": "insufficient_quota"},
    *({"code": "billing_hard_limit_reached"}, {"type": "exceeded_current_quota_error"}, {"code": "1113"}),
]
SPENT = [
    *((429, error) for error in QUOTA),
    (402, {"code": "insufficient_credits"}),
    (402, {"message": "Insufficient Balance"}),
    (402, {"message": "You have insufficient credits. Add more."}),
    (402, {"message": "Your account is out of credits"}),
    (400, {"message": "Your credit balance is too low to access the Anthropic API. Please buy credits."}),
]


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
    assert (result.spent, result.credential_refused, result.final) == (status != 401, True, False)
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
        *((400, "max_tokens is too large"), (422, "messages is too short"), (404, "no such model")),
        *((403, "flagged"), (413, "")),
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
@pytest.mark.parametrize(
    ("advice", "should_retry"), [("false", False), ("TRUE", True), (" false ", False), ("", None), ("0", None)]
)
def test_the_upstreams_advice_is_passed_on(status: int, advice: str, should_retry: bool | None) -> None:
    result = of_answer(status, {**JSON, "x-should-retry": advice, "Retry-After": "30"}, b"{}", ())
    assert result.error.should_retry is should_retry
    assert result.error.retry_after_s == (None if result.final else 30)


@pytest.mark.parametrize(
    ("status", "header", "cool_s"),
    [
        *((429, "7", 7), (429, "", 0), (429, "3600", 3600), (429, "-1", 0), (429, "1e9", 0)),
        (429, "9" * 400, 0),
        *((429, "Wed, 21 Oct 2026 07:28:00 GMT", 0), (529, "", 0), (529, "3", 3), (503, "30", 30)),
        *((503, "", None), (500, "", None)),
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


# What the headers of an upstream's failure say about retrying, in each form that upstreams use.
DATE = "Wed, 21 Oct 2026 07:28:00 GMT"
LATER = "Wed, 21 Oct 2026 07:29:30 GMT"


@pytest.mark.parametrize(
    ("headers", "wait_s"),
    [
        *(({}, None), ({"retry-after": "7"}, 7), ({"Retry-After": "0.25"}, 0.25), ({"Retry-After": " 7 "}, 7)),
        ({"Retry-After": "7", "Retry-After-Ms": "1500"}, 1.5),
        ({"Retry-After": "7", "retry-after-ms": "soon"}, 7),
        *(({"Retry-After": text}, None) for text in ("-1", "1e9", "\u0667", "nan", "inf", "9" * 400, "soon", "7 s")),
        *(({"Retry-After": LATER, "Date": DATE}, 90), ({"Retry-After": DATE, "Date": LATER}, 0)),
        *(({"Retry-After": LATER}, None), ({"Retry-After": LATER, "Date": "today"}, None)),
        ({"Retry-After": LATER.removesuffix(" GMT"), "Date": DATE}, None),
    ],
)
def test_the_wait(headers: dict[str, str], wait_s: float | None) -> None:
    assert retry_after_s(CIMultiDict(headers)) == wait_s


# What is kept of the head of an upstream's answer.
@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ("req_7f3a", "req_7f3a"),
        ("x" * 500, "x" * 128),
        *(("", ""), ("two words", ""), ("t\tab", ""), ("ü", ""), ("\x1b[31m", "")),
    ],
)
def test_an_id_is_visible_ascii_of_bounded_length(value: str, kept: str) -> None:
    assert kept_id(CIMultiDict({"X-Request-ID": value})) == kept
    assert kept_id({}) == ""


def test_the_id_is_kept_when_the_other_headers_are_freed() -> None:
    headers = CIMultiDict({"x-request-id": "req_1", "set-cookie": "a" * 5000})
    keep_only_id(headers)
    assert dict(headers) == {"x-request-id": "req_1"}


# Credentials are used in turn; a refused one is suspended, which is logged without showing it.
class FakeClock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    clock = FakeClock()
    monkeypatch.setattr("time.monotonic", clock)
    return clock


def test_a_refused_credential_is_suspended_and_used_again_later(clock: FakeClock) -> None:
    credentials = Credentials(["a", "b", "c"])
    credentials.refused("b", "openai")
    assert [credentials.next("openai") for _ in range(4)] == list("acac")
    clock.now += SUSPENDED_S
    assert sorted(credentials.next("openai") for _ in range(3)) == ["a", "b", "c"]


def test_when_all_are_refused_the_one_suspended_longest_is_used(clock: FakeClock) -> None:
    credentials = Credentials(["a", "b"])
    credentials.refused("b", "openai")
    assert not credentials.all_refused("openai")
    clock.now += 1
    credentials.refused("a", "openai")
    assert credentials.all_refused("openai")
    assert [credentials.next("openai"), credentials.next("openai")] == ["b", "b"]


def test_the_only_credential_is_never_suspended() -> None:
    credentials = Credentials(["a"])
    credentials.refused("a", "openai")
    assert credentials.next("openai") == "a"


def test_the_log_shows_the_number_of_a_refused_credential_and_never_its_text(
    capsys: pytest.CaptureFixture[str],
) -> None:
    noted: list[tuple[str, int, int, bool]] = []
    states = CredentialStates()
    states.on_refused = lambda *refused: noted.append(refused)
    credentials = Credentials(["canary-0", "canary-1"], states)
    credentials.refused("canary-1", "openai", "401")
    assert noted == [("openai", 2, 2, False)]
    printed = "".join(capsys.readouterr())
    assert "credential_refused" in printed
    assert "number=2" in printed
    assert "openai" in printed
    assert "canary" not in printed


NO = Refused(502, "upstream_auth_failed", "No.")
REFUSED_401 = UpstreamFailure(NO, credential_refused=True, why="401")
REFUSED_402 = UpstreamFailure(NO, forbidden=True, why="402")
REFUSED_403 = UpstreamFailure(NO, forbidden=True, why="403")
CREDENTIALS_SPENT = UpstreamFailure(NO, credential_refused=True, spent=True, why="429")


@pytest.mark.parametrize("failed", [REFUSED_401, REFUSED_402])
def test_one_refusal_sets_a_credential_aside_for_its_account_only_which_tries_the_next(
    clock: FakeClock, failed: UpstreamFailure
) -> None:
    credentials = Credentials(["a", "b"])
    assert credentials.another("a", "openai", "one", failed)
    assert [credentials.next("openai", "one") for _ in range(3)] == ["b", "b", "b"]
    assert sorted(credentials.next("openai", "two") for _ in range(4)) == ["a", "a", "b", "b"]
    assert not credentials.another("b", "openai", "one", failed), "there is no third"
    assert not credentials.all_refused("openai"), "the request may be at fault"


def test_a_401_is_the_credentials_where_the_next_is_accepted_for_the_same_request(clock: FakeClock) -> None:
    credentials = Credentials(["a", "b"])
    assert credentials.another("a", "openai", "one", REFUSED_401)
    credentials.worked("b", "openai", ["a"])
    assert [credentials.next("openai", "two") for _ in range(3)] == ["b", "b", "b"]


@pytest.mark.parametrize(("failed", "confirmed"), [(REFUSED_401, True), (REFUSED_402, False)])
def test_a_second_refusal_of_one_account_tells_of_a_401_alone(
    clock: FakeClock, failed: UpstreamFailure, confirmed: bool
) -> None:
    credentials = Credentials(["a"])
    for _ in range(2):
        assert not credentials.another("a", "openai", "one", failed)
        credentials.worked("a", "openai", ())
    assert not credentials.all_refused("openai"), "it worked in between"
    for _ in range(2):
        assert not credentials.another("a", "openai", "one", failed)
    assert credentials.all_refused("openai") == confirmed
    assert not credentials.another("a", "openai", "two", REFUSED_402)
    assert credentials.all_refused("openai")


def test_a_conversation_keeps_its_credential_in_each_process_and_comes_back(clock: FakeClock) -> None:
    keys = [f"key-{number}" for number in range(4)]
    states = CredentialStates()
    workers = Credentials(keys, states), Credentials(keys[::-1])
    sessions = [f"session {number}" for number in range(400)]

    def all_of(credentials: Credentials) -> dict[str, str]:
        return {session: credentials.next("openai", "one", session) for session in sessions}

    before = all_of(workers[0])
    assert before == all_of(workers[0]) == all_of(workers[1]), "also where the file has them in another order"
    assert all(70 < count < 130 for count in Counter(before.values()).values())
    workers[0].refused("key-2", "openai")
    moved = all_of(workers[0])
    assert {session for session in sessions if moved[session] != before[session]} == {
        session for session in sessions if before[session] == "key-2"
    }
    assert len({moved[session] for session in sessions if before[session] == "key-2"}) == 3, "over all others"
    clock.now += SUSPENDED_S
    assert all_of(workers[0]) == before


def test_a_spent_credential_rests_until_told_once_two_accounts_have_met_it(clock: FakeClock) -> None:
    credentials = Credentials(["a", "b"])
    for _ in range(2):
        assert credentials.another("a", "openai", "one", CREDENTIALS_SPENT)
        assert [credentials.next("openai", "one") for _ in range(3)] == ["b", "b", "b"]
        assert sorted(credentials.next("openai", "two") for _ in range(2)) == ["a", "b"], (
            "one large request may cause it"
        )
    assert credentials.another("a", "openai", "two", CREDENTIALS_SPENT)
    credentials.worked("a", "openai", ())
    clock.now += 10 * SUSPENDED_S
    assert [credentials.next("openai", "three") for _ in range(3)] == ["b", "b", "b"]


def test_a_403_sets_a_credential_aside_for_its_account_only(clock: FakeClock) -> None:
    credentials = Credentials(["a", "b"])
    for _ in range(5):
        assert not credentials.another("a", "openai", "one", REFUSED_403)
    assert [credentials.next("openai", "one") for _ in range(3)] == ["b", "b", "b"]
    assert sorted(credentials.next("openai", "two") for _ in range(4)) == ["a", "a", "b", "b"]
    clock.now += SUSPENDED_S
    assert sorted(credentials.next("openai", "one") for _ in range(2)) == ["a", "b"]


def test_a_403_for_two_accounts_suspends_a_credential_that_did_not_work_between_them(clock: FakeClock) -> None:
    credentials = Credentials(["a", "b"])
    assert not credentials.another("a", "openai", "one", REFUSED_403)
    credentials.worked("a", "openai", ())
    assert not credentials.another("a", "openai", "two", REFUSED_403)
    assert credentials.another("a", "openai", "one", REFUSED_403)
    assert [credentials.next("openai", "three") for _ in range(3)] == ["b", "b", "b"]


def test_accounts_that_met_a_403_are_bounded(clock: FakeClock) -> None:
    credentials = Credentials(["a", "b"])
    for number in range(5 * MAX_ACCOUNTS):
        credentials.another("a", "openai", str(number), REFUSED_403)
        credentials.worked("a", "openai", ())
    assert len(credentials._aside_until[0]) == MAX_ACCOUNTS
