"""Anthropic's Messages through a whole gateway, read by the official `openai` client as Anthropic's own client reads them."""

from __future__ import annotations

import json

import anthropic
import openai
import pytest

from gateway.chat.usage import read_counts
from gateway.usage.record import Record
from plugins.anthropic import Messages
from tests.place import Place
from tests.plugins.anthropic_streams import CACHED, ERROR, MICROS, STREAMS, TEXT, event, start, wire
from tests.plugins.anthropic_upstream import (
    KEY,
    LONG,
    MESSAGES,
    answered,
    assert_same,
    client_of,
    of_openai,
    refused,
    whole,
)
from tests.whole.aftermath import end_records, last_end_record
from tests.whole.raw import ask, chat
from tests.whole.scripted import CHUNKED, Fin, Step, chunk


async def test_both_clients_read_the_same_and_the_charge_is_right(place: Place) -> None:
    scripts = [answered(wire(events)) for events in STREAMS.values() for _ in range(2)]
    async with whole(*place, *scripts) as (gateway, token, claude, _), client_of(gateway, token) as client:
        theirs = anthropic.AsyncAnthropic(base_url=claude.base_url.removesuffix("/v1"), api_key=KEY, max_retries=0)
        for name in STREAMS:
            ours = await of_openai(client)
            async with theirs.messages.stream(model="m", max_tokens=9, messages=MESSAGES) as stream:
                assert_same(ours, await stream.get_final_message())
            record: Record = await last_end_record(gateway)
            assert record.charge_micros == MICROS[name], name
            assert (record.usage_source, record.outcome, record.upstream_request_id) == (
                "upstream",
                "completed",
                "req_01",
            )
            assert [(each.dialect, each.completion_id) for each in record.attempts] == [("anthropic", "msg_01Abc")]
            told = read_counts(record.upstream_usage.encode())  # in Anthropic's own words
            assert told is not None
            assert (told.prompt, told.completion, told.cached, told.written) == (
                *(record.prompt_tokens, record.completion_tokens),
                *(record.cached_tokens, record.cache_write_tokens),
            )
            if name == "refusal":
                assert ours.choices[0].message.refusal == "I cannot help."
        await theirs.close()
        sent, body = claude.requests[0].split(b"\r\n\r\n", 1)
        assert sent.startswith(b"POST /v1/messages HTTP/1.1\r\n")
        lines = sent.decode().lower().split("\r\n")
        assert f"x-api-key: {KEY}" in lines
        assert "anthropic-version: 2023-06-01" in lines
        assert not any(line.startswith("authorization") for line in lines)
        assert json.loads(body) == {
            **{"model": "claude-sonnet-4-5", "max_tokens": 100, "stream": True},
            "messages": [{"role": "user", "content": [{"type": "text", "text": LONG[0]["content"]}]}],
        }


async def test_a_channel_may_name_another_version_and_drop_what_it_takes_away(place: Place) -> None:
    more = ", headers: {anthropic-version: '2026-10-21'}, drop: [temperature, top_p, top_k]"
    async with whole(*place, answered(wire(CACHED)), channel=more) as (gateway, token, claude, _):
        asked = {"temperature": 0.5, "top_p": 0.9, "top_k": 3, "messages": LONG}
        assert (await ask(gateway.port, chat(token, asked))).whole
        head, body = claude.requests[0].split(b"\r\n\r\n", 1)
        assert [line for line in head.decode().lower().split("\r\n") if "version" in line] == [
            "anthropic-version: 2026-10-21"
        ]
        assert json.loads(body).keys() == {"model", "max_tokens", "stream", "messages"}


async def test_one_json_answer_is_gathered(place: Place) -> None:
    async with whole(*place, answered(wire(CACHED))) as (gateway, token, _, _):
        answer = await ask(gateway.port, chat(token, {"stream": False, "messages": LONG}))
        body = json.loads(answer.body)
        assert body["choices"][0]["message"] == {"role": "assistant", "content": "From the cache."}
        assert body["usage"]["prompt_tokens_details"] == {"cached_tokens": 20_000, "cache_write_tokens": 1000}
        record = await last_end_record(gateway)
        assert (record.charge_micros, record.attempts[0].dialect) == (MICROS["cached"], "anthropic")


JSON = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
ERRORS: dict[str, tuple[list[Step], int, str, str]] = {
    "overloaded": (refused(529, "overloaded_error"), 502, "upstream_error", "plain"),
    "overloaded at the start of a stream": (answered(wire([start(), ERROR])), 502, "upstream_error", "plain"),
    "too many requests": (refused(429, "rate_limit_error", more="retry-after: 7\r\n"), 429, "upstream_rate_limited", "plain"),
    "a bug": (refused(500, "api_error"), 502, "upstream_error", "plain"),
    "a wrong key": (refused(401, "authentication_error"), 502, "upstream_auth_failed", "plain"),
    "no credit": (
        refused(400, "invalid_request_error", "Your credit balance is too low to access the Anthropic API."),
        *(502, "upstream_auth_failed", "plain"),
    ),
    "no stream": ([JSON], 502, "upstream_error", "plain"),
    "an unreadable stream": (answered(b"data: {]\n\n"), 502, "upstream_error", "plain"),
    "a wrong request": (refused(400, "invalid_request_error", "messages: roles"), 400, "upstream_refused", "claude"),
    "too large a request": (refused(413, "request_too_large"), 413, "upstream_refused", "claude"),
}  # fmt: skip
"""What Anthropic answers, the status and the code that a caller gets from it alone, and which of two channels answers last."""


async def test_errors_before_the_first_byte_have_their_class_and_the_right_ones_fail_over(place: Place) -> None:
    scripts = [script for script, *_ in ERRORS.values() for _ in range(2)]
    async with whole(*place, *scripts, spare=len(ERRORS)) as (gateway, token, _, _):
        for number, (name, (_, status, code, channel)) in enumerate(ERRORS.items()):
            alone = await ask(gateway.port, chat(token, {"model": f"alone-{number}"}))
            assert (alone.status, alone.error["code"]) == (status, code), name
            assert "credit" not in alone.error["message"]
            await ask(gateway.port, chat(token, {"model": f"both-{number}"}))
            record = await last_end_record(gateway)
            assert record.channel.rstrip("0123456789") == channel, name
            assert [each.dialect for each in record.attempts] == ["anthropic", ""][: 1 + (channel == "plain")]
            assert (record.charge_micros > 0) == (channel == "plain")


async def test_a_plain_channel_that_fails_is_followed_by_anthropic(place: Place) -> None:
    broken: list[Step] = [b"HTTP/1.1 503 Oops\r\nContent-Length: 0\r\n\r\n"]
    async with whole(*place, answered(wire(TEXT)), plain=broken) as (gateway, token, _, _):
        both = await ask(gateway.port, chat(token, {"model": "plain-first", "n": 2}))
        assert (both.status, both.error["code"]) == (502, "upstream_error")  # of the one that could serve it
        async with client_of(gateway, token) as client:
            ours = await of_openai(client, model="plain-first")
        assert ours.choices[0].message.content == "Hello, \u201cworld\u201d \U0001f600!\n"
        record = await last_end_record(gateway)
        assert [(each.channel, each.dialect) for each in record.attempts][-1] == ("claude", "anthropic")
        assert record.charge_micros == MICROS["text"]


async def test_what_the_dialect_cannot_say_goes_to_another_channel_without_blame(place: Place) -> None:
    async with whole(*place, answered(wire(TEXT))) as (gateway, token, claude, plain):
        for fields in ({"n": 2}, {"response_format": {"type": "json_object"}}, {"logprobs": True}):
            await ask(gateway.port, chat(token, {"model": "claude-first", **fields}))
            alone = await ask(gateway.port, chat(token, fields))
            assert (alone.status, alone.error["param"]) == (400, next(iter(fields)))
            assert "retry-after" not in alone.headers
        assert (len(claude.requests), len(plain.requests)) == (0, 3)
        refused = [record for record in await end_records(gateway) if record.model == "words"]
        assert {(record.status, record.charge_micros, record.error_code) for record in refused} == {
            (400, 0, "invalid_request")
        }
        assert (await ask(gateway.port, chat(token))).status == 200


async def test_a_stream_that_breaks_off_raises_in_the_client_and_is_charged(place: Place) -> None:
    begun = wire(TEXT[:5])
    scripts: dict[str, list[Step]] = {
        "error": answered(begun + event(ERROR).replace(b"Overloaded", b"Overloaded " + KEY.encode())),
        "fin": [CHUNKED + chunk(begun), Fin],
        "end": answered(begun + event(TEXT[-2])[:40]),
    }
    async with (
        whole(*place, *scripts.values(), spare=3) as (gateway, token, _, _),
        client_of(gateway, token) as client,
    ):
        for number, cut in enumerate(scripts):
            with pytest.raises(openai.APIError) as raised:
                await of_openai(client, messages=MESSAGES, model=f"alone-{number}")
            if cut == "error":
                assert raised.value.message == "Overloaded [redacted]"
            record = await last_end_record(gateway)
            outcome = "upstream_error_in_stream" if cut == "error" else "upstream_truncated"
            assert (record.outcome, record.usage_source, record.prompt_tokens) == (outcome, "estimated", 25)
            assert 0 < record.completion_tokens < 10
            assert record.charge_micros == 3 * record.prompt_tokens + 15 * record.completion_tokens


def test_an_error_that_is_no_json_stays_as_it_is() -> None:
    assert Messages().error(400, b"<html>") == (400, b"<html>")
