"""Errors, ids, amounts, limits by key and compiled modules."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from gateway.base import compiled, ids
from gateway.base.amounts import amount, parsed
from gateway.base.errors import (
    Misconfigured,
    Refused,
    StoreAway,
    StoreError,
    as_refused,
    headers_of,
    internal,
    model_not_found,
    render,
)
from gateway.base.ids import LAST_MS, arrival_ms, check_time, first_id, month, new_id, utc
from gateway.base.leaky_buckets import MAX_KEYS, LeakyBuckets
from gateway.testing import FixedClock
from tests.records import id_at


# Every error has one JSON shape, and its headers say whether and when to retry.
@pytest.mark.parametrize("details", [{"code": 1}, {"request_id": "z"}, {"a": 1.5}, {1: 1}, {"a": None}, ["a"]])
def test_details_that_hide_a_field_or_have_no_form_are_refused(details: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        Refused(402, "x", "y", details=details)


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
        *((0, "1", "1"), (0.0001, "1", "1"), (0.2, "1", "200"), (1, "1", "1000"), (1.0001, "2", "1001")),
        *((1.001, "2", "1001"), (58.5, "59", "58500"), (59, "59", "59000")),
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
        *((59.5, "60 seconds"), (120, "120 seconds"), (120.5, "3 minutes"), (600, "10 minutes"), (7201, "3 hours")),
        *((86400, "24 hours"), *((wait, "more than a day") for wait in (86401, 251_951_494_399, 1e12))),
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
    assert Refused(405, "code", "message", type="other_error").type == "other_error"


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


# A request's id contains its time of arrival.
NEW_YEAR_MS = 1_798_761_600_000


def test_an_id_contains_the_arrival_to_the_millisecond_and_belongs_to_its_month_in_utc() -> None:
    assert arrival_ms(id_at(NEW_YEAR_MS - 1)) == NEW_YEAR_MS - 1
    assert utc(NEW_YEAR_MS - 1) == "2026-12-31T23:59:59.999Z"
    assert month(id_at(NEW_YEAR_MS - 1)) == "2026-12"
    assert month(id_at(NEW_YEAR_MS)) == "2027-01"
    assert id_at(NEW_YEAR_MS - 1) < first_id(NEW_YEAR_MS) < id_at(NEW_YEAR_MS)


@pytest.mark.parametrize(
    ("id", "message"),
    [
        ("", "not a request id"),
        ("nonsense", "not a request id"),
        ("../../etc", "not a request id"),
        ("5f0c54ba-9b3a-4c1e-8c59-4a9b4b8c9d10", "not a request id"),
        ("zzzzzzzz-zzzz-7197-9f1b-61a58aba6c92", "invalid literal for int() with base 16: 'zzzzzzzzzzzz'"),
        ("ffffffff-ffff-7197-9f1b-61a58aba6c92", "not a time"),
    ],
)
def test_a_malformed_id_raises_value_error(id: str, message: str) -> None:  # noqa: A002
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        month(id)


def test_a_time_is_written_up_to_the_year_9999() -> None:
    assert (utc(0), utc(LAST_MS)) == ("1970-01-01T00:00:00.000Z", "9999-12-31T23:59:59.999Z")
    check_time(id_at(LAST_MS))
    for wrong in (LAST_MS + 1, -1):
        with pytest.raises(ValueError, match=r"^not a time$"):
            utc(wrong)
    with pytest.raises(ValueError, match=r"^not a time$"):
        check_time(id_at(LAST_MS + 1))


@pytest.mark.parametrize("ahead_s", [-30 * 86_400, 40 * 86_400])
def test_ids_follow_the_clock_of_the_store_and_leave_it(monkeypatch: pytest.MonkeyPatch, ahead_s: int) -> None:
    monkeypatch.setattr(ids, "_new", ids._new)
    monkeypatch.setattr(ids, "_ahead_ms", 0)
    now = round(time.time() * 1000)
    for ahead_ms in (1000 * ahead_s, 0):
        ids.follow(now + ahead_ms)
        made = [new_id() for _ in range(1000)]
        times = list(map(arrival_ms, made))
        assert (len(set(made)), times) == (1000, sorted(times))
        assert abs(arrival_ms(made[-1]) - now - ahead_ms) < 30_000
        assert abs(ids.ahead_ms() - ahead_ms) < 30_000


# Amounts as people read them.
@pytest.mark.parametrize(
    ("micros", "text"),
    [
        *((0, "0.00"), (25, "0.000025"), (123, "0.000123"), (5_000_000, "5.00"), (-1_500_000, "-1.50")),
        (2**53, "9007199254.740992"),
    ],
)
def test_an_amount_has_two_to_six_decimals(micros: int, text: str) -> None:
    assert amount(micros) == text


@pytest.mark.parametrize(
    ("text", "micros"), [("5", 5_000_000), (" 5.00 ", 5_000_000), ("-.5", -500_000), ("+1.", 1_000_000), ("0", 0)]
)
def test_an_amount_is_read_as_people_write_it(text: str, micros: int) -> None:
    assert parsed(text) == micros


@pytest.mark.parametrize(
    "text", ["", ".", "1e3", "1E3", "1_000", "1,5", "NaN", "inf", "5 0", "0x5", "\u0665", "1.2345678", "-", "9" * 12]
)
def test_what_may_be_a_slip_is_no_amount(text: str) -> None:
    with pytest.raises(ValueError, match=r"^`.*` (is not an amount|is too large|cannot be stored)"):
        parsed(text)


# Limiter by key: how much fits, what leaks out, and a bounded memory.
def test_a_bucket_holds_a_minute_and_leaks() -> None:
    clock = FixedClock()
    buckets = LeakyBuckets(3, monotonic=clock.monotonic)
    assert [buckets.add("a") for _ in range(5)] == [0, 0, 0, 20, 20]
    assert buckets.add("b") == 0
    clock.move(20)
    assert [buckets.add("a") for _ in range(2)] == [0, 20]


def test_what_may_wait_takes_the_room_that_will_be_there() -> None:
    clock = FixedClock()
    buckets = LeakyBuckets(2, 1.0, monotonic=clock.monotonic)
    assert [buckets.add("a", 1.0) for _ in range(6)] == [0, 0, 0.5, 1, 1.5, 1.5]
    clock.move(1)
    assert [buckets.add("a", 1.0) for _ in range(3)] == [0.5, 1, 1.5]


def test_the_number_of_keys_in_memory_is_bounded() -> None:
    buckets = LeakyBuckets(1, monotonic=FixedClock().monotonic)
    buckets.add("first")
    for number in range(MAX_KEYS):
        buckets.add(str(number))
    assert (buckets.add("first"), buckets.add("first") > 0) == (0, True)


# What is said of the compiled modules, and what turns them off.
STALE = "gateway/chat/tokens.py changed since the compiled modules were built, install again"
NOT_BUILT = (
    "the compiled modules are not built for this Python, for which an installation needs Cython and a C compiler"
)
PRINT_BOTH = (
    "from gateway.base import compiled; import gateway.chat.events as one; print(one.__file__, compiled.description())"
)
built = pytest.mark.skipif(bool(compiled.WHY_PURE), reason=compiled.WHY_PURE)


def described(root: Path = compiled.ROOT, **environment: str) -> tuple[str, str]:
    """Return the file that a module is imported from, and what is said."""
    command = [sys.executable, "-c", PRINT_BOTH]
    variables = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"} | environment
    run = subprocess.run(command, capture_output=True, text=True, check=True, env=variables, cwd=root)
    file, said = run.stdout.strip().split(" ", 1)
    return str(Path(file).relative_to(root)), said


def test_the_environment_turns_them_off() -> None:
    assert described(GATEWAY_PURE="1") == ("gateway/chat/events.py", "events in pure Python: GATEWAY_PURE is set")
    assert described(GATEWAY_PURE="0") == described(GATEWAY_PURE="")


@built
def test_all_are_used_or_none(tmp_path: Path) -> None:
    root = tmp_path.resolve()
    shutil.copytree(compiled.ROOT / "gateway", root / "gateway", ignore=shutil.ignore_patterns("__pycache__"))
    used = (str(compiled.built("gateway.chat.events").relative_to(compiled.ROOT)), "events by the compiled path")
    assert described(root) == used
    source = root / "gateway/chat/tokens.py"
    text = source.read_text()
    source.write_text(text + "\n")
    assert described(root) == ("gateway/chat/events.py", f"events in pure Python: {STALE}")
    source.write_text(text)
    assert described(root) == used
    (root / compiled.built("gateway.chat.sse").relative_to(compiled.ROOT)).unlink()
    assert described(root) == ("gateway/chat/events.py", f"events in pure Python: {NOT_BUILT}")


def test_what_runs_a_second_time_is_there() -> None:
    text = (compiled.ROOT / "Makefile").read_text()
    found = re.findall(r"\$\(patsubst %,tests/(\w+)/test_%\.py,([\w ]+)\)", text)
    files = [compiled.ROOT / f"tests/{folder}/test_{name}.py" for folder, names in found for name in names.split()]
    assert len(files) > 9
    assert all(map(Path.is_file, files))


@pytest.mark.parametrize(
    ("model", "named"),
    [
        ("gpt-9", "There is no model 'gpt-9', or"),
        ("meta/llama-3:free", "There is no model 'meta/llama-3:free', or"),
        ("sk-demo-4s3ksjd7-Y8hRHqu6xEhgAd8IHtSpufiZM6ZP", "There is no such model, or"),
        ("a b\n", "There is no such model, or"),
        ("x" * 101, "There is no such model, or"),
    ],
)
def test_a_model_that_is_not_there_is_named_where_it_looks_like_a_name(model: str, named: str) -> None:
    assert str(model_not_found(model)).startswith(named)
