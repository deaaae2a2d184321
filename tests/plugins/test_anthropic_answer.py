"""Answers and errors of Anthropic, in whatever shape they come.

- Additions to a stream break no answer and change none, however the stream is cut; and the charge is right.
- An error as a response leads to the answer of its status, and nothing is charged.
"""

from __future__ import annotations

import json
from typing import Any, Final

import anthropic
import openai
import pytest

from gateway.chat.answers import GatheredCompletion
from gateway.chat.events import EventStream
from gateway.chat.sse import parse_event, whole_events
from gateway.chat.usage import ReportedUsage
from gateway.proxy.translation import Translation
from plugins.anthropic import Messages
from plugins.anthropic.answer import MAX_MESSAGE, MAX_OPEN, MessageReader, error_delta, error_of
from tests.place import Place
from tests.plugins.anthropic_odd_streams import END, ERRORS, HELLO, LOOSE, SAME, USED
from tests.plugins.anthropic_streams import MICROS, PRICE, STOP, start, text, wire
from tests.plugins.anthropic_upstream import KEY, LONG, MESSAGES, answered, assert_same, client_of, of_openai, whole
from tests.whole.aftermath import end_records, last_end_record
from tests.whole.raw import ask, chat
from tests.whole.scripted import Step

STREAMS = SAME | {name: odd["data"] for name, odd in LOOSE.items()}
ESTIMATED = 25_000 // 4
"""Tokens of the prompt, at least, where the upstream tells none that can be used."""


class Answer:
    """What a caller gets of a stream that arrives in pieces and then ends. `complete`: it is a whole answer."""

    def __init__(self, *pieces: bytes) -> None:
        self.events = EventStream(drop_usage=False)
        translation = Translation(Messages(), self.events.usage)
        translation._created = 1
        self.sent = b"".join(self.events.feed(translation.feed(piece)) for piece in pieces)
        rest, clean = translation.close()
        self.sent += self.events.feed(rest) + self.events.close()
        self.complete = clean and self.events.error is None and self.events.complete

    @property
    def choices(self) -> Any:
        """The choices, put together."""
        gathered = GatheredCompletion()
        for each in whole_events(self.sent):
            if (data := parse_event(each)[1]) and data != b"[DONE]":
                gathered.add(data)
        return json.loads(gathered.encode())["choices"]


BY_BYTES: Final = ("text", "thinking", "tools", "line ends", "half", "comments", "data on several lines")
"""The beginnings of names of streams that are cut at every byte: those of each kind, and those that are odd in their bytes."""


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_may_be_cut_at_every_byte_and_is_whole_only_at_its_end(name: str) -> None:
    data = STREAMS[name]
    answer = Answer(data)
    assert answer.complete
    step = 97 if len(data) >= 5000 else 1 if name.startswith(BY_BYTES) else 7
    for at in range(0, len(data), step):
        cut = Answer(data[:at], data[at:])
        assert cut.sent == answer.sent, at
        truncated = Answer(data[:at])
        if truncated.complete:
            assert truncated.choices == answer.choices, at
        else:
            assert b"[DONE]" not in truncated.sent, at


async def test_both_clients_read_the_same_of_odd_streams(place: Place) -> None:
    scripts = [answered(data) for data in SAME.values() for _ in range(3)]
    async with (
        whole(*place, *scripts) as (gateway, token, claude, _),
        client_of(gateway, token) as client,
        anthropic.AsyncAnthropic(base_url=claude.base_url.removesuffix("/v1"), api_key=KEY, max_retries=0) as theirs,
    ):
        for name in SAME:
            ours = await of_openai(client)
            record = await last_end_record(gateway)
            async with theirs.messages.stream(model="m", max_tokens=9, messages=MESSAGES) as stream:
                message = await stream.get_final_message()
            assert_same(ours, message, name)
            assert record.charge_micros == MICROS.get(name, micros(message.usage)), name
            assert (record.usage_source, record.outcome) == ("upstream", "completed")
            plain = await client.chat.completions.create(model="words", messages=LONG)
            assert_same(plain, message, name)
            assert (await last_end_record(gateway)).charge_micros == record.charge_micros


def micros(usage: anthropic.types.Usage) -> int:
    """Return what a usage costs, by hand."""
    prices = {name: float(str(price)) for name, price in PRICE.items()}
    return round(
        usage.input_tokens * prices["input"]
        + (usage.cache_read_input_tokens or 0) * prices["cached_input"]
        + (usage.cache_creation_input_tokens or 0) * prices["cache_write"]
        + usage.output_tokens * prices["output"]
    )


async def test_streams_that_are_not_as_they_should_be_are_read_and_what_they_do_not_tell_is_estimated(
    place: Place,
) -> None:
    scripts = [answered(odd["data"]) for odd in LOOSE.values() for _ in range(2)]
    async with whole(*place, *scripts) as (gateway, token, _, _), client_of(gateway, token) as client:
        for name, odd in LOOSE.items():
            streamed = await of_openai(client)
            plain = await client.chat.completions.create(model="words", messages=LONG)
            for ours in (streamed, plain):
                (choice,) = ours.choices
                assert (choice.message.content or "", choice.finish_reason) == (odd["text"], odd["finish_reason"]), name
            record = await last_end_record(gateway)
            prompt, output = odd["usage"]
            assert record.outcome == "completed", name
            assert record.usage_source == ("estimated" if None in odd["usage"] else "upstream"), name
            assert record.prompt_tokens == prompt if prompt else record.prompt_tokens > ESTIMATED, name
            assert record.completion_tokens == output if output else 1 < record.completion_tokens < 10, name
            assert record.charge_micros == 3 * record.prompt_tokens + 15 * record.completion_tokens


async def test_an_error_has_its_text_in_whatever_shape_and_place_it_comes(place: Place) -> None:
    begun = wire([start(), *HELLO])
    places = {"first": b"", "after the start": wire([start()]), "in the middle": begun, "last": begun + wire([END])}
    cases = [(name, at) for name in ERRORS for at in places]
    scripts = [answered(places[at] + ERRORS[name][0] + wire([STOP])) for name, at in cases for _ in range(2)]
    async with (
        whole(*place, *scripts, spare=2 * len(cases)) as (gateway, token, _, _),
        client_of(gateway, token) as client,
    ):
        for number, (name, at) in enumerate(cases):
            message, early = ERRORS[name][1], at in ("first", "after the start")
            with pytest.raises(openai.APIError) as raised:
                await of_openai(client, messages=MESSAGES, model=f"alone-{2 * number}")
            record = await last_end_record(gateway)
            if early:
                assert isinstance(raised.value, openai.InternalServerError), (name, at)
                assert (record.outcome, record.charge_micros) == ("upstream_failed", 0), (name, at)
            else:
                assert (raised.value.message, record.outcome) == (message, "upstream_error_in_stream"), (name, at)
                assert 0 < record.charge_micros < 3 * 25 + USED + 1
            with pytest.raises(openai.InternalServerError):
                await client.chat.completions.create(model=f"alone-{2 * number + 1}", messages=MESSAGES)
            assert (await last_end_record(gateway)).status == 502


async def test_a_stream_that_is_cut_raises_in_the_client_and_is_recorded_as_truncated(place: Place) -> None:
    ends = {name: data[: data.rindex(b"message_delta") - 20] for name, data in SAME.items() if b"text_delta" in data}
    async with (
        whole(*place, *(answered(data) for data in ends.values()), spare=len(ends)) as (
            gateway,
            token,
            _,
            _,
        ),
        client_of(gateway, token) as client,
    ):
        for number, name in enumerate(ends):
            with pytest.raises(openai.APIError):
                await of_openai(client, model=f"alone-{number}")
            assert (await last_end_record(gateway)).outcome == "upstream_truncated", name


def test_a_reader_keeps_no_more_than_it_must() -> None:
    reader = MessageReader()
    (first, *_) = text(0)
    with pytest.raises(ValueError, match="too many incomplete blocks"):
        for index in range(MAX_OPEN + 1):
            list(reader.read("", json.dumps({**first, "index": index}).encode()))
    assert len(reader._open) <= MAX_OPEN + 1


@pytest.mark.parametrize(
    "data", [b"5", b"[]", b"{}", b'"x"', b'{"type": 7}', b'{"choices": [{"delta": {"content": "x"}}]}']
)
def test_an_event_of_another_api_is_an_error(data: bytes) -> None:
    assert b"an event cannot be read" in Translation(Messages(), ReportedUsage()).feed(b"data: " + data + b"\n\n")


@pytest.mark.parametrize("kind", ["message_start", "content_block_delta", "message_delta", "message_stop"])
def test_a_known_event_that_cannot_be_read_is_an_error(kind: str) -> None:
    for data in (b"{]", b"\xff", b"[" * 100_000, b'{"type": "' + kind.encode() + b'", "delta": "\xff"}'):
        sent = Translation(Messages(), ReportedUsage()).feed(b"event: " + kind.encode() + b"\ndata: " + data + b"\n\n")
        assert b"an event cannot be read" in sent, data[:40]


NO = {"type": "invalid_request_error", "message": "No."}
BODIES: Final[dict[str, tuple[bytes, bool]]] = {
    "documented": (json.dumps({"type": "error", "error": NO, "request_id": "req_1"}).encode(), True),
    "without a type": (json.dumps({"error": {"message": "No."}}).encode(), True),
    "a text": (b'{"type": "error", "error": "No."}', True),
    "a message": (b'{"message": "No."}', True),
    "a detail": (b'{"detail": "No."}', True),
    "nested": (json.dumps({"type": "error", "error": {"type": "error", "error": NO}}).encode(), True),
    "a list": (json.dumps([{"error": NO}]).encode(), True),
    "nulls": (b'{"type": null, "error": {"type": null, "message": null}}', False),
    "numbers": (b'{"type": 5, "error": {"type": 7, "message": [7]}}', False),
    "an error of null": (b'{"error": null}', False),
    "empty": (b"", False),
    "no object": (b"7", False),
    "a page": (b"<html>No.</html>", False),
    "half of it": (b'{"type": "error", "error": {"mess', False),
    "not UTF-8": (b'{"error": {"message": "\xff"}}', False),
    "deep": (b'{"error":' * 20_000, False),
    "huge": (json.dumps({"later": "x" * 100_000, "error": NO}).encode(), False),
}
"""Bodies of errors, and whether they say why."""
STATUSES: Final = {
    400: (400, "upstream_refused"),
    401: (502, "upstream_auth_failed"),
    403: (502, "upstream_auth_failed"),
    404: (404, "upstream_refused"),
    413: (413, "upstream_refused"),
    429: (429, "upstream_rate_limited"),
    500: (502, "upstream_error"),
    529: (502, "upstream_error"),
}
PASSED_ON: Final = (400, 404, 413)


def failing(status: int, body: bytes) -> list[Step]:
    head = f"HTTP/1.1 {status} No\r\nContent-Type: application/json\r\nretry-after: 7\r\nContent-Length: {len(body)}\r\n\r\n"
    return [head.encode() + body]


async def test_each_status_leads_to_its_answer_whatever_the_body(place: Place) -> None:
    pairs = [(status, name, row + column) for row, status in enumerate(STATUSES) for column, name in enumerate(BODIES)]
    cases = [(status, name, number % 2 == 0) for status, name, number in pairs]
    scripts = [failing(status, BODIES[name][0]) for status, name, _ in cases]
    async with whole(*place, *scripts, spare=len(cases)) as (gateway, token, _, _):
        for number, (status, name, stream) in enumerate(cases):
            answer = await ask(gateway.port, chat(token, {"model": f"alone-{number}", "stream": stream}))
            expected, code = STATUSES[status]
            told = BODIES[name][1] and status in PASSED_ON
            if status == 413 and not told:
                code = "body_too_large"
            assert (answer.status, answer.error["code"]) == (expected, code), (status, name)
            assert (answer.error["message"] == "No.") == told, (status, name)
            assert answer.error["message"]
            assert ("retry-after" in answer.headers) == (status in (429, 500, 529)), (status, name)
        records = await end_records(gateway)
        assert len(records) == len(cases)
        assert {(record.charge_micros, record.outcome) for record in records} == {(0, "upstream_failed")}
        account = await gateway.store.accounts.get("tester")
        assert (account.held_micros, account.balance_micros) == (0, 50_000_000)


async def test_an_account_without_credit_is_no_fault_of_the_request(place: Place) -> None:
    text = "Your credit balance is too low to access the Anthropic API."
    shapes = [{"error": {"message": text}}, {"error": text}, {"message": text}]
    scripts = [failing(400, json.dumps(shape).encode()) for shape in shapes]
    async with (
        whole(*place, *scripts, spare=len(shapes)) as (gateway, token, _, _),
        client_of(gateway, token) as client,
    ):
        for number in range(len(shapes)):
            await client.chat.completions.create(model=f"both-{number}", messages=MESSAGES, stream=True)
            record = await last_end_record(gateway)
            assert [each.error for each in record.attempts] == ["upstream_auth_failed", ""]


@pytest.mark.parametrize("body", [body for body, _ in BODIES.values()])
def test_a_message_is_bounded_and_text(body: bytes) -> None:
    kind, message = error_of(body.replace(b"No.", b"No." * MAX_MESSAGE))
    assert kind
    assert len(message) <= MAX_MESSAGE
    assert len(error_delta(body * 9).error["message"]) <= MAX_MESSAGE
