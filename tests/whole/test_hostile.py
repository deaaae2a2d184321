"""Malformed and unusual requests at a real port: the response, the upstream's request, the records, and what is left behind.

Each case of `hostile_requests` is one connection. The response is the expected one, and an error has the common shape; the
upstream receives nothing, or exactly the request that the gateway builds; the bytes that follow are read as a request only if
the framing before them was valid; and each request has one record.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from email.utils import parsedate_to_datetime

import pytest

from gateway.config.schema import ACCOUNT_ID
from gateway.server.head import MALFORMED
from gateway.store.accounts import AccountError
from gateway.testing import Running
from tests.patience import PATIENCE_S
from tests.whole.aftermath import records_in_stream
from tests.whole.conftest import CHAIN, Serve
from tests.whole.hostile_requests import GROUPS, SMUGGLED, Case
from tests.whole.hostile_texts import NAUGHTY
from tests.whole.raw import Answer, get, read_answer
from tests.whole.scripted import CHUNKED, LAST, Scripted, chunk

EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
HEADERS_UPSTREAM = {
    "host",
    "authorization",
    "content-type",
    "content-length",
    "accept",
    "accept-encoding",
    "user-agent",
    "traceparent",
    "tracestate",
}
CONNECTIONS = 8
ERROR_SHAPE = {"message", "type", "param", "code", "request_id"}
HEADERS_OUT = {
    *("date", "content-type", "content-length", "transfer-encoding", "connection", "x-request-id", "cache-control"),
    *("x-accel-buffering", "www-authenticate", "allow", "retry-after", "retry-after-ms", "x-should-retry"),
    *(f"x-ratelimit-{what}-{unit}" for what in ("limit", "remaining", "reset") for unit in ("requests", "tokens")),
}
LIMITS = "port: {max_body: 1048576, head_timeout: 3, body_timeout: 3}"
OPEN = (
    CHAIN.replace("requests_per_minute: 1000", "requests_per_minute: 1000000")
    .replace("use: auth", "use: auth\n    with: {wrong_tokens_per_minute: 100000}")
    .replace("tokens_per_minute: 1000000", "tokens_per_minute: null")
    .replace(
        "use: usage-logger", "use: usage-logger\n    with: {unknown_per_minute: 100000, refused_per_minute: 100000}"
    )
)


@pytest.fixture
async def scripted() -> AsyncIterator[Scripted]:
    async with Scripted([CHUNKED + chunk(EVENT) + LAST]) as server:
        yield server


@pytest.fixture
async def gateway(scripted: Scripted, serve: Serve) -> AsyncIterator[Running]:
    async with serve(scripted.base_url, chain=OPEN, more=LIMITS) as whole:
        yield whole


async def exchange(port: int, token: bytes, case: Case, mark: bytes) -> tuple[list[Answer], bytes]:
    """Send a case on a new connection, and return the responses and the bytes that came after them.

    After a request with valid framing, a request for /healthz follows on the same connection.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**22)
    answers: list[Answer] = []
    try:
        async with asyncio.timeout(PATIENCE_S):
            writer.write(
                (case.sent.replace(b"MARK", mark) + (SMUGGLED if case.smuggles else b"")).replace(b"TOKEN", token)
            )
            if b"Expect: 100" in case.sent and case.status == 200:
                assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            answers.append(await read_answer(reader))
            if case.smuggles:
                return answers, await reader.read()
            writer.write(get("/healthz"))
            answers.append(await read_answer(reader))
            return answers, b""
    except asyncio.IncompleteReadError as error:
        return answers, error.partial
    except ConnectionError:
        return answers, b""
    finally:
        writer.close()


def problem(case: Case, secrets: list[bytes], answers: list[Answer], rest: bytes) -> str:
    """Return what is wrong with the responses, or an empty string."""
    if not answers:
        return "no response"
    first, *others = answers
    code = first.error["code"] if first.status >= 400 else ""
    if (first.status, code) != (case.status, case.code):
        return f"{first.status} {code} {first.body[:80]!r}"
    if code and (set(first.error) != ERROR_SHAPE or first.error["request_id"] != first.headers["x-request-id"]):
        return "not the common error shape"
    sent = first.body + repr(first.headers).encode()
    if any(piece in sent for piece in secrets):
        return "a piece of a secret"
    if set(first.headers) - HEADERS_OUT:
        return f"unexpected headers: {set(first.headers) - HEADERS_OUT}"
    if abs(parsedate_to_datetime(first.headers["date"]).timestamp() - time.time()) > PATIENCE_S:
        return f"a wrong date: {first.headers['date']}"
    if case.smuggles and rest:
        return f"the smuggled request was read: {rest[:40]!r}"
    if others and others[0].body != b"ok\n":
        return f"the next request was misread: {others[0]}"
    return ""


def upstream_problem(request: bytes) -> str:
    """Return what is wrong with a request that the upstream received, or an empty string."""
    start, *lines = request.partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")
    names = [line.partition(":")[0].lower() for line in lines]
    if start != "POST /v1/chat/completions HTTP/1.1" or len(names) != len(set(names)) or set(names) - HEADERS_UPSTREAM:
        return f"{start} {names}"
    return (
        ""
        if "authorization: bearer channel-credential-4711" in [line.lower() for line in lines]
        else "not the channel's credential"
    )


@pytest.mark.parametrize("group", GROUPS)
async def test_hostile_requests_are_served_or_refused_as_expected(
    gateway: Running, scripted: Scripted, group: str, capfd: pytest.CaptureFixture[str]
) -> None:
    token = (await gateway.token(credit=10**12)).encode()
    whole_secrets = token.rpartition(b"-")[2], b"channel-credential-4711"
    secrets = [secret[at : at + 8] for secret in whole_secrets for at in range(len(secret) - 7)]
    limit = asyncio.Semaphore(CONNECTIONS)
    marks = {f"{number:04}".encode(): case for number, case in enumerate(GROUPS[group])}

    answered: list[tuple[Case, Answer]] = []

    async def one(mark: bytes, case: Case) -> str:
        async with limit:
            try:
                answers, rest = await exchange(gateway.port, token, case, mark)
                wrong = problem(case, secrets, answers, rest)
                answered.extend((case, answer) for answer in answers[:1])
            except TimeoutError:
                wrong = "hangs, or the connection stays open"
        return f"{case.name}: {wrong}" if wrong else ""

    wrong = [text for text in await asyncio.gather(*(one(*item) for item in marks.items())) if text]
    for mark, case in marks.items():
        seen = sum(b'"content":"' + mark + b'"' in request for request in scripted.requests)
        if seen != (case.status == 200 and b"/completions" in case.sent):
            wrong.append(f"{case.name}: the upstream received it {seen} times")
    wrong += [text for request in scripted.requests if (text := upstream_problem(request))]
    assert not wrong, "\n".join(wrong)
    assert not any(b"EVIL" in request for request in scripted.requests)
    await assert_nothing_held(gateway)
    assert await record_problems(gateway, answered) == []
    assert capfd.readouterr() == ("", ""), "data of a request was logged"


async def record_problems(gateway: Running, answered: list[tuple[Case, Answer]]) -> list[str]:
    """Return the cases that lack one arrival and one end with the response's status, or that have a record wrongly."""
    records: defaultdict[str, list[int | None]] = defaultdict(list)
    for record in await records_in_stream(gateway):
        records[record.id].append(record.status if record.outcome else None)
    wrong = []
    for case, answer in answered:
        recorded = records.pop(answer.headers["x-request-id"], [])
        one = [None, answer.status]
        if recorded not in ([one] if has_record(case, answer) else [[], one] if answer.status == 431 else [[]]):
            wrong.append(f"{case.name}: {recorded}")
    return wrong + [f"a record whose id no response has: {unknown}" for unknown in records]


def has_record(case: Case, answer: Answer) -> bool:
    """Return whether this was an HTTP request for a path under /v1. With too large a head (431), the path may be unknown."""
    not_http = answer.status >= 400 and answer.error["message"] == MALFORMED
    return not not_http and answer.status != 431 and case.sent.split(None, 2)[1].startswith(b"/v1")


async def assert_nothing_held(gateway: Running) -> None:
    """Assert that no money is held, no body budget is reserved, and no exchange is open."""
    await gateway.gateway.runner.wait_ended()
    account = await gateway.store.accounts.get("tester")
    assert account is not None
    assert (account.held_micros, account.holds) == (0, 0)
    assert (gateway.gateway.runner.open, gateway.gateway.budget.reserved) == (0, 0)


async def test_naughty_strings_are_refused_as_account_names(gateway: Running) -> None:
    for name in NAUGHTY:
        if not ACCOUNT_ID.fullmatch(name):
            with pytest.raises(AccountError) as refused:
                await gateway.store.accounts.create(name)
            assert str(refused.value).isprintable()
