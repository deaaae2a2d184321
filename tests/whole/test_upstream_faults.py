"""Upstreams that fail: the response, the charge, the record, and the release of all resources."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import openai
import pytest

from gateway import AttemptRecord, Outcome
from gateway.store.channels import CooldownRules
from gateway.testing import Running, running
from plugins.model_routing import ModelRouting
from tests.chat.dialects import DIALECTS, MESSAGE, NOT_ERRORS
from tests.place import Place
from tests.whole.aftermath import assert_ended, assert_released, charged, last_end_record, tasks
from tests.whole.conftest import Serve, configuration
from tests.whole.raw import ask, chat, read_answer
from tests.whole.scripted import CHUNKED, HEAD, LAST, Fin, Forever, Hold, Reset, Scripted, Step, chunk
from tests.whole.test_stream import DONE, PASSED, STREAM, USAGE, WORDS, event

# Faults of upstreams: the response, the connection, the charge, the record, and the release of all resources.
KEY = "channel-credential-4711"
END_OF_KEY = KEY[-6:]
"""A part of the key that cannot be in a request's id by chance, because ids are hexadecimal."""
OK = b"HTTP/1.1 200 OK\r\n"
HALF = b"".join(WORDS[:4])
FAILURE = b'data: {"error": {"message": "the model fell over", "code": "boom"}}\n\n'
BOUNDED = ", max_response_bytes: 3000"
SHORT_TIMERS = BOUNDED + ", timers: {connect: 1, first_byte: 0.3, idle: 0.3}"
"""Short timers, only for faults that a timeout must end: on a busy machine they would end other requests too."""
SHORT_TOTAL = BOUNDED + ", timers: {idle: 1, total: 1.5}"
FAILED, TRUNCATED = Outcome.UPSTREAM_FAILED, Outcome.UPSTREAM_TRUNCATED


def full_response(status: str, body: bytes = b"", *headers: str, kind: str = "application/json") -> bytes:
    """Return a response with a Content-Length."""
    lines = "".join(f"{line}\r\n" for line in (f"Content-Type: {kind}", f"Content-Length: {len(body)}", *headers))
    return f"HTTP/1.1 {status}\r\n{lines}\r\n".encode() + body


BEFORE_FIRST_BYTE: dict[str, tuple[list[Step], int, str, str, int]] = {
    # What the upstream does: the script, the status, the code, the charge, how many connections stay in the pool.
    "closes without a response": ([Fin], 502, "upstream_error", "input", 0),
    "resets without a response": ([Reset], 502, "upstream_error", "input", 0),
    "accepts and says nothing": ([Hold], 504, "upstream_timeout", "input", 0),
    "sends its head and nothing more": ([CHUNKED, Hold], 504, "upstream_timeout", "input", 0),
    "sends comments and never an event": (
        [CHUNKED, Forever(chunk(b": x\n\n"), 0.05)],
        *(504, "upstream_timeout", "input", 0),
    ),
    "trickles a head": ([OK, Forever(b"X: y\r\n", 0.05)], 504, "upstream_timeout", "input", 0),
    "ends in the first event": ([CHUNKED + chunk(WORDS[0][:9]) + LAST], 502, "upstream_error", "nothing", 1),
    "breaks in the first event": ([CHUNKED + chunk(WORDS[0][:9]), Fin], 502, "upstream_error", "input", 0),
    "ends without an event": ([CHUNKED + LAST], 502, "upstream_error", "nothing", 1),
    "ends after comments": ([CHUNKED + chunk(b": x\n\n") + LAST], 502, "upstream_error", "nothing", 1),
    "comments beyond the ceiling": ([CHUNKED + chunk(b": xxxx\n\n" * 500), Hold], 502, "upstream_error", "nothing", 0),
    "an error as first event": ([CHUNKED + chunk(FAILURE + DONE) + LAST], 502, "upstream_error", "nothing", 1),
    "an error after a comment": ([CHUNKED + chunk(b": x\n\n" + FAILURE), Hold], 502, "upstream_error", "nothing", 0),
    "JSON": ([full_response("200 OK", b"{}")], 502, "upstream_error", "nothing", 1),
    "a page": ([full_response("200 OK", b"<p>", kind="text/html")], 502, "upstream_error", "nothing", 1),
    "nothing, with 204": ([b"HTTP/1.1 204 No Content\r\n\r\n"], 502, "upstream_error", "nothing", 1),
    "a page of an error": (
        [full_response("500 Oops", b"<p>" * 99, kind="text/html")],
        *(502, "upstream_error", "nothing", 1),
    ),
    "529": ([full_response("529 Overloaded", b"{}")], 502, "upstream_error", "nothing", 1),
    "429": ([full_response("429 Slow", b"{}", "Retry-After: 7")], 429, "upstream_rate_limited", "nothing", 1),
    "429 for an hour": (
        [full_response("429 Slow", b"{}", "Retry-After: 3600")],
        *(429, "upstream_rate_limited", "nothing", 1),
    ),
    "gzip": (
        [full_response("200 OK", gzip.compress(STREAM), "Content-Encoding: gzip", kind="text/event-stream")],
        *(502, "upstream_error", "nothing", 1),
    ),
    "an error in gzip": (
        [full_response("500 No", gzip.compress(b"{}"), "Content-Encoding: gzip")],
        *(502, "upstream_error", "nothing", 1),
    ),
    "more than the ceiling at once": ([CHUNKED + chunk(WORDS[1] * 50) + LAST], 502, "upstream_error", "input", 1),
    "garbage": ([b"SSH-2.0-OpenSSH_9.6\r\n", Hold], 502, "upstream_error", "nothing", 0),
    "a header line too long": ([OK + b"X: " + b"y" * 70_000 + b"\r\n\r\n", Hold], 502, "upstream_error", "nothing", 0),
    "too many header lines": ([OK + b"X: yyyyyyyy\r\n" * 9_000 + b"\r\n", Hold], 502, "upstream_error", "nothing", 0),
    "a control character": ([OK + b"X: \x01\r\n\r\n", Hold], 502, "upstream_error", "nothing", 0),
    "a NUL": ([OK + b"X: \x00\r\n\r\n", Hold], 502, "upstream_error", "nothing", 0),
    "two lengths": (
        [HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n", Hold],
        *(502, "upstream_error", "nothing", 0),
    ),
    "101": (
        [b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", Hold],
        *(502, "upstream_error", "nothing", 0),
    ),
    **{
        f"redirects with {status}": (
            [full_response(f"{status} Over there", b"", "Location: http://127.0.0.1:1/steal")],
            *(502, "upstream_error", "nothing", 1),
        )
        for status in (301, 302, 303, 307, 308)
    },
    **{
        f"refuses us with {status}": (
            [full_response(f"{status} No", b'{"error": {"message": "your key channel-credential-4711 is bad"}}')],
            *(502, "upstream_auth_failed", "nothing", 1),
        )
        for status in (401, 402, 403)
    },
}


@pytest.mark.parametrize("fault", BEFORE_FIRST_BYTE)
async def test_a_fault_before_the_first_byte_is_an_error(fault: str, serve: Serve) -> None:
    script, status, code, charge, pooled = BEFORE_FIRST_BYTE[fault]
    channel = SHORT_TIMERS if code == "upstream_timeout" else BOUNDED
    async with Scripted(script) as upstream, serve(upstream.base_url, channel=channel) as gateway:
        token = await gateway.token()
        before = tasks()
        answer = await ask(gateway.port, chat(token))
        assert (answer.status, answer.error["code"]) == (status, code)
        assert answer.whole
        assert END_OF_KEY.encode() not in answer.body
        assert b"Over there" not in answer.body
        assert int(answer.headers.get("retry-after", 1)) <= 59
        await assert_ended(gateway, FAILED, charge, code)
        await assert_released(gateway, upstream, before, pooled)
        assert len(upstream.requests) == 1


AFTER_FIRST_BYTE: dict[str, tuple[list[Step], Outcome, str]] = {
    "resets in an event": ([CHUNKED + chunk(HALF + b'data: {"x'), 0.05, Reset], TRUNCATED, "upstream_truncated"),
    "closes in an event": ([CHUNKED + chunk(HALF + b'data: {"x'), Fin], TRUNCATED, "upstream_truncated"),
    "closes within a chunk": ([CHUNKED + b"fff\r\n" + HALF, Fin], TRUNCATED, "upstream_truncated"),
    "ends in an event": ([CHUNKED + chunk(HALF + b'data: {"x') + LAST], TRUNCATED, "upstream_truncated"),
    "ends without a finish reason": ([CHUNKED + chunk(HALF) + LAST], TRUNCATED, "upstream_truncated"),
    "ends short of its length": ([HEAD + b"Content-Length: 9999\r\n\r\n" + HALF, Fin], TRUNCATED, "upstream_truncated"),
    "closes without a finish reason": ([HEAD + b"\r\n" + HALF, Fin], TRUNCATED, "upstream_truncated"),
    "a broken chunk": ([CHUNKED + chunk(HALF) + b"zz\r\n", Hold], TRUNCATED, "upstream_truncated"),
    "stalls": ([CHUNKED + chunk(HALF), Hold], Outcome.UPSTREAM_STALLED, "upstream_timeout"),
    "trickles": ([CHUNKED, Forever(chunk(WORDS[1]), 0.1)], Outcome.STOPPED, "upstream_timeout"),
    "trickles comments": (
        [CHUNKED + chunk(HALF), Forever(chunk(b": x\n\n"), 0.1)],
        Outcome.STOPPED,
        "upstream_timeout",
    ),
    "runs on": ([CHUNKED, Forever(chunk(WORDS[1]), 0.001)], Outcome.STOPPED, "upstream_error"),
}


@pytest.mark.parametrize("fault", AFTER_FIRST_BYTE)
async def test_a_fault_after_the_first_byte_ends_the_stream_with_an_error_event(fault: str, serve: Serve) -> None:
    script, outcome, code = AFTER_FIRST_BYTE[fault]
    total_timer = SHORT_TOTAL if outcome is Outcome.STOPPED else BOUNDED
    channel = (
        SHORT_TIMERS if outcome is Outcome.UPSTREAM_STALLED else total_timer if code == "upstream_timeout" else BOUNDED
    )
    async with Scripted(script) as upstream, serve(upstream.base_url, channel=channel) as gateway:
        token = await gateway.token()
        before = tasks()
        answer = await ask(gateway.port, chat(token))
        assert answer.status == 200
        assert not answer.whole
        *events, last, rest = answer.body.split(b"\n\n")
        assert rest == b""
        assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == code
        assert len(answer.body) < 3500
        assert all(json.loads(event.removeprefix(b"data: ")) for event in events if event[:1] == b"d")
        await assert_ended(gateway, outcome, "estimate", code)
        await assert_released(
            gateway,
            upstream,
            before,
            1 if isinstance(last_step := script[-1], bytes) and last_step.endswith(LAST) else 0,
        )
        assert len(upstream.requests) == 1


async def test_an_error_event_mid_stream_is_passed_on_and_not_charged_as_output(serve: Serve) -> None:
    failure = FAILURE.replace(b"fell", b"fell " * 500)
    async with Scripted([CHUNKED + chunk(HALF + failure) + LAST]) as upstream, serve(upstream.base_url) as gateway:
        token = await gateway.token()
        before = tasks()
        answer = await ask(gateway.port, chat(token))
        assert (answer.status, answer.body, answer.whole) == (200, HALF + failure, False)
        record = await assert_ended(gateway, Outcome.UPSTREAM_ERROR_IN_STREAM, "estimate")
        assert record.completion_tokens <= 6
        await assert_released(gateway, upstream, before, 1)


COMMENTED = STREAM.replace(b"\n\ndata", b"\n\n: a comment\n\ndata")
PASSES: dict[str, tuple[list[Step], bytes]] = {
    "chunked": ([CHUNKED + chunk(STREAM) + LAST], PASSED),
    "with a length": ([HEAD + b"Content-Length: %d\r\n\r\n" % len(STREAM) + STREAM], PASSED),
    "up to its close": ([HEAD + b"\r\n" + STREAM, Fin], PASSED),
    "HTTP/1.0": ([HEAD.replace(b"1.1", b"1.0") + b"\r\n" + STREAM, Fin], PASSED),
    "without [DONE]": ([CHUNKED + chunk(STREAM.replace(DONE, b"")) + LAST], PASSED.replace(DONE, b"")),
    "with the usage first": ([CHUNKED + chunk(USAGE), 0.05, chunk(STREAM) + LAST], PASSED),
    "with CRLF": ([CHUNKED + chunk(STREAM.replace(b"\n", b"\r\n")) + LAST], PASSED.replace(b"\n", b"\r\n")),
    "with comments between": ([CHUNKED + chunk(COMMENTED) + LAST], COMMENTED.replace(USAGE, b"")),
    "after 100, 102 and 103": (
        [
            b"HTTP/1.1 100 Continue\r\n\r\n",
            0.01,
            b"HTTP/1.1 102 P\r\n\r\nHTTP/1.1 103 E\r\nContent-Type: x\r\n\r\n",
            CHUNKED + chunk(STREAM) + LAST,
        ],
        PASSED,
    ),
    "followed by an unrequested response": ([CHUNKED + chunk(STREAM) + LAST + full_response("200 OK", STREAM)], PASSED),
}


@pytest.mark.parametrize("way", PASSES)
async def test_an_unusual_but_valid_response_passes(way: str, serve: Serve) -> None:
    script, expected = PASSES[way]
    async with Scripted(script) as upstream, serve(upstream.base_url) as gateway:
        token = await gateway.token()
        before = tasks()
        answer = await ask(gateway.port, chat(token))
        assert (answer.status, answer.whole) == (200, True)
        assert answer.body == expected
        await assert_ended(gateway, Outcome.COMPLETED, "exact")
        closes = Fin in script or "unrequested" in way
        await assert_released(gateway, upstream, before, 0 if closes else 1)


async def test_an_error_body_of_fifty_megabytes_is_hardly_read(serve: Serve) -> None:
    size = 50_000_000
    script: list[Step] = [b"HTTP/1.1 500 No\r\nContent-Length: %d\r\n\r\n" % size, *[b"x" * 50_000] * (size // 50_000)]
    async with Scripted(script) as upstream, serve(upstream.base_url) as gateway:
        token = await gateway.token()
        before = tasks()
        answer = await ask(gateway.port, chat(token))
        assert answer.error["code"] == "upstream_error"
        await assert_ended(gateway, FAILED, "nothing", "upstream_error")
        await assert_released(gateway, upstream, before, 0)
        assert upstream.sent < 20_000_000, "more was read than fits into the kernel's buffers"


async def test_a_pooled_connection_that_the_upstream_closed_is_replaced_once(serve: Serve) -> None:
    good: list[Step] = [CHUNKED + chunk(STREAM) + LAST]
    async with Scripted(good, [Reset], good) as upstream, serve(upstream.base_url) as gateway:
        token = await gateway.token()
        before = tasks()
        for _ in range(2):
            answer = await ask(gateway.port, chat(token))
            assert (answer.status, answer.body) == (200, PASSED)
        record = await last_end_record(gateway)
        assert len(record.attempts) == 1
        assert await charged(gateway) == 2 * record.charge_micros
        await assert_released(gateway, upstream, before, 1)
        assert (len(upstream.requests), upstream.connections) == (3, 2)


async def test_the_replacement_is_a_fresh_connection_and_not_another_pooled_one(serve: Serve) -> None:
    good: list[Step] = [CHUNKED + chunk(STREAM[:300]), 0.1, chunk(STREAM[300:]) + LAST]
    async with Scripted(good, good, [Reset], good) as upstream, serve(upstream.base_url) as gateway:
        token = await gateway.token()
        await asyncio.gather(*(ask(gateway.port, chat(token)) for _ in range(2)))
        assert upstream.connections == 2
        assert (await ask(gateway.port, chat(token))).body == PASSED
        assert upstream.connections == 3


@pytest.mark.parametrize("script", [[Reset], [Fin], [b"HTTP/1.1 ", Reset]])
async def test_a_fresh_connection_or_one_that_began_to_answer_is_not_replaced(serve: Serve, script: list[Step]) -> None:
    good: list[Step] = [CHUNKED + chunk(STREAM) + LAST]
    scripts = [good, script] if len(script) == 2 else [good, script, script]
    async with Scripted(*scripts) as upstream, serve(upstream.base_url) as gateway:
        token = await gateway.token()
        assert (await ask(gateway.port, chat(token))).status == 200
        answer = await ask(gateway.port, chat(token))
        assert (answer.status, answer.error["code"]) == (502, "upstream_error")
        assert answer.headers["x-should-retry"] == "false"
        assert len(upstream.requests) == len(scripts)


@pytest.mark.parametrize("address", ["http://127.0.0.1:1/v1", "http://no-such-host.invalid/v1", "http://[::1]:1/v1"])
async def test_an_unreachable_upstream_costs_nothing(serve: Serve, address: str) -> None:
    async with serve(address, channel=BOUNDED) as gateway:
        token = await gateway.token()
        before = tasks()
        answer = await ask(gateway.port, chat(token))
        assert (answer.status, answer.error["code"]) == (502, "upstream_unreachable")
        await assert_ended(gateway, FAILED, "nothing", "upstream_unreachable")
        await assert_released(gateway, None, before, 0)


ECHOES: dict[str, list[Step]] = {
    "an event": [CHUNKED + chunk(event({"content": KEY}) + STREAM) + LAST],
    "a comment": [CHUNKED + chunk(f": {KEY}\n\n".encode() + STREAM) + LAST],
    "an event in two reads": [
        CHUNKED + chunk(event({"content": KEY})[:-30]), 0.02, chunk(event({"content": KEY})[-30:] + STREAM) + LAST
    ],
    "two reads": [CHUNKED + chunk(b"data: channel-cred"), 0.02, chunk(b"ential-4711\n\n" + STREAM) + LAST],
    "an event that is too long to wait for": [
        *(CHUNKED + chunk(b"data: " + b"x" * (1 << 20)), 0.05, chunk(b"xx channel-cre"), 0.05),
        chunk(b"dential-4711 yy\n\n" + STREAM) + LAST,
    ],
    "an error event": [CHUNKED + chunk(HALF + FAILURE.replace(b"the model", KEY.encode())) + LAST],
    "an error that is replaced": [
        CHUNKED + chunk(HALF), 0.01, chunk(f'data: {{"object":"error","message":"bad key {KEY}"}}\n\n'.encode()) + LAST
    ],
    "a first error": [CHUNKED + chunk(FAILURE.replace(b"the model", KEY.encode())) + LAST],
    "an error": [full_response("400 No", json.dumps({"error": {"message": f"key {KEY} bad", "code": KEY, "param": KEY}}).encode())],
    "its own header": [CHUNKED.replace(b"\r\n\r\n", f"\r\nx-request-id: {KEY}\r\n\r\n".encode()) + chunk(STREAM) + LAST],
}  # fmt: skip


@pytest.mark.parametrize("place", ECHOES)
async def test_the_credential_is_redacted_in(place: str, serve: Serve) -> None:
    async with Scripted(ECHOES[place]) as upstream, serve(upstream.base_url) as gateway:
        answer = await ask(gateway.port, chat(await gateway.token()))
        record = await last_end_record(gateway)
        assert KEY.encode() in upstream.requests[0]
        assert END_OF_KEY not in repr((answer, record))
        assert "[redacted]" in repr((answer, record))


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ([full_response("200 OK", b'{"usage": {"prompt_tokens": 3'), Fin], "is not valid JSON."),
        ([full_response("200 OK", b"[]"), Fin], "is not a chat completion."),
    ],
)
async def test_an_invalid_json_response_is_an_error(serve: Serve, script: list[Step], message: str) -> None:
    more = "port: {allow_non_streaming: true}"
    async with Scripted(script) as upstream, serve(upstream.base_url, more=more) as gateway:
        token = await gateway.token()
        before = tasks()
        answer = await ask(gateway.port, chat(token, {"stream": False}))
        assert (answer.status, answer.error["code"]) == (502, "upstream_error")
        assert answer.error["message"].startswith(f"The upstream's answer {message} ")
        await last_end_record(gateway)
        await assert_released(gateway, upstream, before, 0)


async def test_a_body_that_took_all_of_the_time_counts_for_no_upstream(serve: Serve) -> None:
    async with (
        Scripted([CHUNKED + chunk(STREAM) + LAST]) as upstream,
        serve(upstream.base_url, channel=", timers: {total: 0.2}") as gateway,
    ):
        request = chat(await gateway.token())
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(request[:-1])
        await asyncio.sleep(0.3)  # longer than `total`
        writer.write(request[-1:])
        answer = await read_answer(reader)
        writer.close()
        assert (answer.status, answer.error["code"]) == (504, "upstream_timeout")
        assert "Send its body faster" in answer.error["message"]
        assert upstream.requests == []
        await assert_ended(gateway, FAILED, "nothing", "upstream_timeout")
        routing = gateway.gateway.chain.entries[-1].plugin
        assert isinstance(routing, ModelRouting)
        await routing.health.sync()
        (channel,) = await gateway.store.channels.show(["fake"])
        assert (channel.in_words, channel.last_error) == ("healthy", "")


# Errors of upstreams in every dialect: what the caller and the official client get, the outcome and the charge.
FINISHED = b"".join(WORDS)
LONG = MESSAGE + " again" * 200


def data_event(data: str, name: str = "") -> bytes:
    return (f"event: {name}\n" if name else "").encode() + f"data: {data}\n\n".encode()


@asynccontextmanager
async def playing(script: list[Step], folder: Path, store_url: str, more: str = "") -> AsyncIterator[Running]:
    async with (
        Scripted(script) as upstream,
        running(configuration(upstream.base_url, more=more), folder, store_url) as gateway,
    ):
        gateway.gateway.services.store.channels.cooldown = CooldownRules(min_failures=100)  # more follow
        yield gateway


@pytest.mark.parametrize(
    "before", [HALF, FINISHED, FINISHED + USAGE], ids=["in the middle", "at the end", "after usage"]
)
async def test_an_error_event_after_the_first_byte(before: bytes, place: Place) -> None:
    script: list[Step] = []
    async with playing(script, *place) as gateway:
        token = await gateway.token()
        spent = 0
        for data, raises in DIALECTS.values():
            failing = data_event(data.replace(MESSAGE, LONG))
            # The error and `[DONE]` in one read, as vLLM sends them.
            script[:] = [CHUNKED + chunk(before), 0.01, chunk(failing + DONE) + LAST]
            answer = await ask(gateway.port, chat(token))
            assert (answer.status, answer.whole) == (200, False)
            relayed = before.replace(USAGE, b"")
            assert answer.body.startswith(relayed + (failing if raises else b"data: "))
            error = json.loads(answer.body.removeprefix(relayed)[6:])["error"]
            assert MESSAGE in error["message"]
            assert all(error.get(name) is None or isinstance(error[name], str) for name in ("type", "param", "code"))
            record = await last_end_record(gateway)
            assert (record.outcome, record.error_code) == (Outcome.UPSTREAM_ERROR_IN_STREAM, "")
            assert record.completion_tokens <= 9
            spent += record.charge_micros
            assert await charged(gateway) == spent
            assert (record.usage_source == "upstream") is (USAGE in before)


@pytest.mark.parametrize("dialect", ["OpenAI", "vLLM", "TGI", "FastAPI", "Google", "OpenRouter"])
async def test_an_error_event_before_the_first_byte_is_an_error_and_costs_nothing(dialect: str, place: Place) -> None:
    failing = data_event(DIALECTS[dialect][0])
    async with playing([CHUNKED + chunk(b": wait\n\n" + failing + DONE) + LAST], *place) as gateway:
        answer = await ask(gateway.port, chat(await gateway.token()))
        assert (answer.status, answer.error["code"]) == (502, "upstream_error")
        record = await last_end_record(gateway)
        assert (record.outcome, record.charge_micros) == (Outcome.UPSTREAM_FAILED, 0)


async def test_what_is_no_error_ends_nothing_and_the_answer_is_complete(place: Place) -> None:
    script: list[Step] = []
    async with playing(script, *place) as gateway:
        token = await gateway.token()
        for data in NOT_ERRORS.values():
            for stream in (data_event(data) + STREAM, HALF + data_event(data) + STREAM[len(HALF) :]):
                script[:] = [CHUNKED + chunk(stream) + LAST]
                answer = await ask(gateway.port, chat(token))
                assert (answer.status, answer.whole) == (200, True)
                without_choice = b"choices" not in data_event(data) or b'"choices":[]' in data_event(data)
                dropped = data_event(data) if without_choice and data != "[]" else b""
                assert answer.body == stream.replace(USAGE, b"").replace(dropped, b"")
                assert (await last_end_record(gateway)).outcome is Outcome.COMPLETED


async def test_the_official_client_raises_on_every_error_event(place: Place) -> None:
    script: list[Step] = []
    async with playing(script, *place) as gateway:
        token = await gateway.token()
        async with openai.AsyncOpenAI(base_url=gateway.base_url, api_key=token, max_retries=0) as library:
            for data, _ in DIALECTS.values():
                for name in ("", "error"):
                    script[:] = [CHUNKED + chunk(HALF), 0.01, chunk(data_event(data, name) + DONE) + LAST]
                    text = ""
                    with pytest.raises(openai.APIError, match=MESSAGE):
                        async for part in await library.chat.completions.create(
                            model="words", messages=[{"role": "user", "content": "hi"}], stream=True
                        ):
                            text += part.choices[0].delta.content or ""
                    assert text == " word0 word1 word2"


def in_json(data: str, status: str) -> list[Step]:
    body = data.encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return [head.encode() + body]


async def test_an_error_as_json_with_a_status_of_the_caller_is_passed_on(place: Place) -> None:
    script: list[Step] = []
    async with playing(script, *place) as gateway:
        token = await gateway.token()
        for data, _ in DIALECTS.values():
            script[:] = in_json(data, "422 Unprocessable")
            answer = await ask(gateway.port, chat(token))
            assert (answer.status, answer.error["message"]) == (422, MESSAGE)
            record = await last_end_record(gateway)
            assert (record.outcome, record.charge_micros) == (Outcome.UPSTREAM_FAILED, 0)


ANSWER = {"id": "c", "object": "chat.completion", "choices": [{"index": 0, "message": {"content": "x" * 40}}]}
INPUT = -(-len('[{"role": "user", "content": "hi"}]') // 4)


@pytest.mark.parametrize(
    ("usage", "prompt", "completion"),
    [
        *(({"prompt_tokens": 7, "completion_tokens": 11}, 7, 11), ({}, INPUT, 10), (None, INPUT, 10)),
        ({"total_tokens": 90}, INPUT, 90 - INPUT),
        ({"prompt_tokens": 7, "total_tokens": 18}, 7, 11),
        ({"prompt_tokens": None, "completion_tokens": 11}, INPUT, 11),
        ({"prompt_tokens": 7, "completion_tokens": 0}, 7, 10),
        ({"prompt_tokens": -7, "completion_tokens": 1.5}, INPUT, 10),
        ({"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 18}, 7, 11),
    ],
)
async def test_a_json_answer_is_charged_by_its_usage_or_by_its_text(
    usage: object, prompt: int, completion: int, place: Place
) -> None:
    script = in_json(json.dumps({**ANSWER, "padding": "y" * 4000, "usage": usage}), "200 OK")
    async with playing(script, *place, "port: {allow_non_streaming: true}") as gateway:
        answer = await ask(gateway.port, chat(await gateway.token(), {"stream": False}))
        assert (answer.status, answer.whole) == (200, True)
        record = await last_end_record(gateway)
        assert (record.outcome, record.prompt_tokens, record.completion_tokens) == (
            Outcome.COMPLETED,
            prompt,
            completion,
        )
        assert await charged(gateway) == prompt + 2 * completion


@pytest.mark.parametrize("dialect", ["OpenAI", "vLLM", "TGI", "FastAPI", "Google", "xAI"])
async def test_an_error_as_json_with_200_is_an_error_and_costs_nothing(dialect: str, place: Place) -> None:
    script = in_json(DIALECTS[dialect][0], "200 OK")
    async with playing(script, *place, "port: {allow_non_streaming: true}") as gateway:
        answer = await ask(gateway.port, chat(await gateway.token(), {"stream": False}))
        assert (answer.status, answer.error["code"]) == (502, "upstream_error")
        assert MESSAGE in answer.error["message"]
        record = await last_end_record(gateway)
        assert (record.outcome, record.charge_micros) == (Outcome.UPSTREAM_FAILED, 0)


# The record of each upstream call has the names that the upstream gave it, by which its bill names it.
UPSTREAM_IDS_HEAD = CHUNKED.replace(b"\r\n\r\n", b"\r\nx-request-id: req-1\r\n\r\n")
UPSTREAM_IDS_DONE = b"data: [DONE]\n\n"
UPSTREAM_IDS_USAGE = b'"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}'


def upstream_ids_event(
    id: str,  # noqa: A002
    choice: str = '{"index":0,"delta":{"content":"a"},"finish_reason":null}',
    *,
    last: bool = False,
) -> bytes:
    """Return an event of a completion; with `last`, the one that finishes it."""
    choice = choice.replace("null", '"stop"') if last else choice
    return b'data: {"id":"%b","object":"chat.completion.chunk","choices":[%b]}\n\n' % (id.encode(), choice.encode())


def stream(id: str) -> bytes:  # noqa: A002
    usage = b'data: {"id":"%b","choices":[],%b}\n\n' % (id.encode(), UPSTREAM_IDS_USAGE)
    return chunk(upstream_ids_event(id) + upstream_ids_event(id, last=True) + usage + UPSTREAM_IDS_DONE) + LAST


BODY = (
    b'{"id":"cmpl-9","object":"chat.completion","choices":[{"index":0,"message":{"content":"a"}}],%b}'
    % UPSTREAM_IDS_USAGE
)
JSON = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nx-request-id: req-1\r\nContent-Length: %d\r\n\r\n" % len(
    BODY
)
ANSWERS: dict[str, tuple[list[Step], str]] = {
    "a stream": ([UPSTREAM_IDS_HEAD + stream("cmpl-1")], "cmpl-1"),
    "in pieces": (
        [
            UPSTREAM_IDS_HEAD + chunk(upstream_ids_event("cmpl-2")),
            0.01,
            chunk(upstream_ids_event("cmpl-2", last=True) + UPSTREAM_IDS_DONE) + LAST,
        ],
        "cmpl-2",
    ),
    "cut after the first event": ([UPSTREAM_IDS_HEAD + chunk(upstream_ids_event("cmpl-3")), Fin], "cmpl-3"),
    "a first event without an id": (
        [UPSTREAM_IDS_HEAD + chunk(upstream_ids_event("", "")), 0.01, stream("cmpl-4")],
        "cmpl-4",
    ),
    "no id at all": ([UPSTREAM_IDS_HEAD + stream("")], ""),
    "a credential in it": ([UPSTREAM_IDS_HEAD + stream(f"cmpl-{KEY}")], "cmpl-[redacted]"),
}


@pytest.mark.parametrize("answer", ANSWERS)
async def test_the_id_of_a_completion_is_kept(answer: str, serve: Serve) -> None:
    script, expected = ANSWERS[answer]
    async with Scripted(script) as upstream, serve(upstream.base_url) as gateway:
        await ask(gateway.port, chat(await gateway.token()))
        record = await last_end_record(gateway)
    (attempt,) = record.attempts
    assert (attempt.upstream_request_id, attempt.completion_id) == ("req-1", expected)
    assert record.upstream_request_id == "req-1"


async def test_the_id_of_a_json_answer_is_kept(serve: Serve) -> None:
    more = "port: {allow_non_streaming: true}"
    async with Scripted([JSON + BODY]) as upstream, serve(upstream.base_url, more=more) as gateway:
        answer = await ask(gateway.port, chat(await gateway.token(), {"stream": False}))
        assert json.loads(answer.body)["id"] == "cmpl-9"
        record = await last_end_record(gateway)
    assert [attempt.completion_id for attempt in record.attempts] == ["cmpl-9"]


async def test_each_attempt_has_its_own_names(place: Place) -> None:
    failed = b"HTTP/1.1 500 Oops\r\nx-request-id: req-0\r\nContent-Length: 0\r\n\r\n"
    async with Scripted([failed]) as first, Scripted([UPSTREAM_IDS_HEAD + stream("cmpl-5")]) as second:
        text = configuration(first.base_url).replace(
            "channels: [fake]}", "channels: [{use: fake, priority: 0}, {use: second, priority: 1}]}", 1
        )
        text = text.replace("models:", f"  second: {{base_url: '{second.base_url}'}}\nmodels:", 1)
        async with running(text, *place) as gateway:
            await ask(gateway.port, chat(await gateway.token()))
            record = await last_end_record(gateway)
    assert record.attempts == [
        AttemptRecord("fake", 500, "upstream_error", 0, "req-0", ""),
        AttemptRecord("second", 200, "", None, "req-1", "cmpl-5"),
    ]
