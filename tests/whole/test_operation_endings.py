"""Each operation beside chat completions: streams in pieces, the ways in which answers end, and usage that is told oddly.

Whatever comes, a request has one record and one charge of the same amount, and the account's books agree.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from itertools import product
from pathlib import Path
from typing import Any

from gateway.operations.form import FORM, written
from gateway.operations.operation import SERVED, Operation
from gateway.testing import Running, running
from gateway.usage.record import Record
from tests.operations.test_documented_answers import STREAMS, stream_of
from tests.patience import PATIENCE_S, wait_until
from tests.place import Place
from tests.whole.aftermath import end_records
from tests.whole.conftest import CHAIN
from tests.whole.raw import Answer, ask, chat
from tests.whole.scripted import CHUNKED, LAST, Fin, Forever, Hold, Reset, Scripted, Step, chunk
from tests.whole.test_units import wav

FILE = """
channels: {{{channels}}}
models: {{{models}}}
groups: {{default: {{}}}}
port: {{allow_non_streaming: true}}
{chain}
"""
LIMITS = "on_caller_gone: cancel, max_response_bytes: 9999"
CHANNEL = '"c{name}": {{base_url: "{url}", operations: [{served}], {limits}, timers: {{{timers}}}}}'
PRICES = "input: 1, output: 2, request: 0.001, image: 0.04, second: 0.0001, character: 15"
MODEL = '"{name}": {{{prices}, max_output_tokens: 100, channels: ["c{name}"]}}'
CREDIT = 5_000_000
TIMERS = {"says nothing": "total: 1", "says no more": "total: 1", "stalls": "idle: 0.5"}
"""Short ones, for what they are to end: on a busy machine they would end other requests, too."""
JSON_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


class Stage:
    """A gateway in front of an upstream that plays one script at a time, and a token. Each case has a model and a channel of its
    own, so that no failure of one case keeps another from its channel.
    """

    def __init__(self, gateway: Running, upstream: Scripted, token: str) -> None:
        self.gateway, self.upstream, self.token = gateway, upstream, token

    def request(self, operation: Operation, case: str, *, stream: bool = False) -> bytes:
        wire = SERVED[operation]
        body = wire.sample(f"{operation} {case}", "max_tokens")
        if operation is Operation.COMPLETIONS:
            body |= {"stream": stream} | ({"stream_options": {"include_usage": True}} if stream else {})
        elif stream:
            body |= {"stream_format": "sse"} if operation is Operation.SPEECH else {"stream": True}
        if wire.accepts != FORM:
            return chat(self.token, json.dumps(body).encode(), path=f"/v1{wire.path}")
        body |= {"file": wav(4.5)} | ({"stream": "true"} if stream else {})
        media = {"Content-Type": f"{FORM}; boundary=b7"}
        return chat(self.token, written(body, "b7"), path=f"/v1{wire.path}", headers=media)

    async def ask(self, operation: Operation, case: str, script: Sequence[Step], *, stream: bool = False) -> Answer:
        self.upstream.scripts = [script]
        return await ask(self.gateway.port, self.request(operation, case, stream=stream))

    async def leave(
        self, operation: Operation, case: str, script: Sequence[Step], *, seen: bytes = b"", stream: bool = False
    ) -> None:
        """Ask, and leave once the upstream has the request and the caller has seen `seen`."""
        self.upstream.scripts = [script]
        self.upstream.arrived.clear()
        reader, writer = await asyncio.open_connection("127.0.0.1", self.gateway.port)
        writer.write(self.request(operation, case, stream=stream))
        async with asyncio.timeout(PATIENCE_S):
            await self.upstream.arrived.wait()
            if seen:
                await reader.readuntil(seen)
        writer.transport.abort()
        await wait_until(lambda: not self.gateway.gateway.runner.open)

    async def books(self) -> dict[str, Record]:
        """Return the records by model when all requests have ended: one of each, and one charge of what it says."""
        records = await end_records(self.gateway)
        async with asyncio.timeout(PATIENCE_S):
            while (account := await self.gateway.store.accounts.get("tester")) is None or account.holds:
                await asyncio.sleep(0.01)
        lines = [fields for _, fields in await self.gateway.store.client.call("XRANGE", "gw:{tester}:ledger", "-", "+")]
        charges = sorted((line[b"id"].decode(), -int(line[b"amount"])) for line in lines if line[b"kind"] != b"credit")
        assert [each for each in charges if each[1]] == sorted(
            (each.id, each.charge_micros) for each in records if each.charge_micros
        )
        assert len({name for name, _ in charges}) == len(charges)
        assert CREDIT - account.balance_micros == sum(each.charge_micros for each in records)
        assert (account.held_micros, await self.gateway.store.wallet.verify("tester")) == (0, [])
        by_model = {each.model: each for each in records}
        assert len(by_model) == len(records)
        return by_model


@asynccontextmanager
async def staged(folder: Path, url: str, operations: Iterable[Operation], cases: Iterable[str]) -> AsyncIterator[Stage]:
    async with Scripted([]) as upstream:
        names = {f"{operation} {case}": TIMERS.get(case, "") for operation, case in product(operations, cases)}
        given = {"url": upstream.base_url, "served": ", ".join(SERVED), "limits": LIMITS}
        channels = ", ".join(CHANNEL.format(name=name, timers=timers, **given) for name, timers in names.items())
        models = ", ".join(MODEL.format(name=name, prices=PRICES) for name in names)
        async with running(FILE.format(channels=channels, models=models, chain=CHAIN), folder, url) as gateway:
            yield Stage(gateway, upstream, await gateway.token(credit=CREDIT))


def whole(value: object, status: int = 200) -> list[Step]:
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n"
    return [head.encode() + text]


def sse(*events: object) -> bytes:
    return b"".join(
        b"data: %b\n\n" % (each if isinstance(each, bytes) else json.dumps(each).encode()) for each in events
    )


def assert_due(operation: Operation, record: Record, *, whole: bool = True) -> None:
    """Assert the charge of an answer; of one that was sent for and did not come, its prompt alone."""
    tokens = record.prompt_tokens + 2 * record.completion_tokens
    unit = UNITS.get(SERVED[operation].unit)
    due = 1000 + (tokens if unit is None else unit) if whole else tokens if unit is None else 0
    assert record.charge_micros == due


UNITS = {"image": 40_000, "second": 5 * 100, "character": 5 * 15}
USED = {"prompt_tokens": 10, "completion_tokens": 20, "total_tokens": 30}
SPENT = {"input_tokens": 10, "output_tokens": 20, "total_tokens": 30}
ERROR = {"error": {"message": "busy", "type": "server_error"}}
ANSWERS: dict[Operation, dict[str, Any]] = {
    Operation.COMPLETIONS: {"choices": [{"index": 0, "text": "Rain falls.", "finish_reason": "stop"}]},
    Operation.EMBEDDINGS: {"object": "list", "data": [{"index": 0, "embedding": [0.5]}]},
    Operation.RERANK: {"results": [{"index": 0, "relevance_score": 0.9}]},
    Operation.MODERATIONS: {"id": "modr-1", "results": [{"flagged": False}]},
    Operation.TRANSCRIPTIONS: {"text": "Hello there."},
    Operation.IMAGES: {"created": 1, "data": [{"b64_json": "AAAA"}]},
}
STREAMED = (Operation.COMPLETIONS, Operation.IMAGES, Operation.SPEECH, Operation.TRANSCRIPTIONS)
CUTS = 12


async def test_a_stream_is_charged_once_wherever_it_is_cut(place: Place) -> None:
    cases = [*map(str, range(CUTS))]
    async with staged(*place, STREAMED, cases) as stage:
        for operation in STREAMED:
            shape, told = next((shape, told) for each, shape, told in STREAMS if each is operation and told[0])
            data = stream_of(shape, "LF")
            for number, case in enumerate(cases):
                cut = 1 + number * (len(data) - 2) // (CUTS - 1)
                script: list[Step] = [CHUNKED + chunk(data[:cut]), *[0.0] * 3, chunk(data[cut:]) + LAST]
                answer = await stage.ask(operation, case, script, stream=True)
                assert (answer.status, answer.body, answer.whole) == (200, data, True)
            records = await stage.books()
            for case in cases:
                record = records[f"{operation} {case}"]
                assert (record.outcome, record.prompt_tokens, record.completion_tokens) == ("completed", *told[:2])
                assert_due(operation, record)


def told(usage: object) -> bytes:
    return json.dumps(usage).encode()


ODD: dict[str, tuple[bytes, int, int, int]] = {
    # What is told, and the tokens that count: of a prompt, of an output, and of a prompt where nothing is generated. 0: estimated.
    "by one name": (told(USED), 10, 20, 10),
    "by another name": (told(SPENT), 10, 20, 10),
    "absent": (b"", 0, 0, 0),
    "null": (b"null", 0, 0, 0),
    "zeros": (told(dict.fromkeys(USED, 0)), 0, 0, 0),
    "negative": (told(dict.fromkeys(USED, -10)), 0, 0, 0),
    "strings": (told(dict.fromkeys(USED, "10")), 0, 0, 0),
    "true": (told(dict.fromkeys(USED, True)), 0, 0, 0),
    "huge": (told(dict.fromkeys(USED, 10**30)), 0, 0, 0),
    "fractions": (told({"prompt_tokens": 9.5, "completion_tokens": 19.5, "total_tokens": 30}), 0, 20, 10),
    "a total alone": (b'{"total_tokens": 30}', 0, 0, 30),
    "twice": (b'{"total_tokens": 1}, "usage": ' + told(USED), 10, 20, 10),
    "a list": (b"[10, 20]", 0, 0, 0),
    "a number": (b"30", 0, 0, 0),
    "within": (told({"tokens": USED}), 0, 0, 0),
}


async def test_usage_that_is_told_oddly(place: Place) -> None:
    async with staged(*place, ANSWERS, ODD) as stage:
        for operation, answer in ANSWERS.items():
            for case, (usage, *_) in ODD.items():
                text = json.dumps(answer).encode()[:-1] + (b', "usage": ' + usage if usage else b"") + b"}"
                got = await stage.ask(operation, case, whole(text))
                assert (got.status, got.body) == (200, text)
        records = await stage.books()
        for operation in ANSWERS:
            for case, (_, prompt, output, read) in ODD.items():
                record = records[f"{operation} {case}"]
                assert record.outcome == "completed", record
                assert_due(operation, record)
                if operation is Operation.COMPLETIONS:
                    assert (record.usage_source == "upstream") == (prompt > 0), record
                    assert (record.completion_tokens == output) if output else 0 < record.completion_tokens < 10, record
                    assert (record.prompt_tokens == prompt) if prompt else 10 < record.prompt_tokens < 40, record
                elif operation in (Operation.EMBEDDINGS, Operation.RERANK):
                    assert (record.prompt_tokens == read) if read else 0 < record.prompt_tokens < 9, record
                    assert record.completion_tokens == 0
                elif operation is Operation.MODERATIONS:
                    assert record.charge_micros == 1000


def endings(answer: dict[str, Any]) -> dict[str, tuple[list[Step], int, str, bool]]:
    """Return by name: what the upstream does, the status, the error code, and whether the prompt is charged."""
    text = json.dumps(answer | {"usage": USED}).encode()
    stated, chunked = JSON_HEAD + b"Content-Length: %d\r\n\r\n" % len(text), JSON_HEAD + CHUNKED_BODY
    return {
        "closes": ([Fin], 502, "upstream_error", True),
        "resets": ([Reset], 502, "upstream_error", True),
        "breaks off": ([stated + text[:-5], Fin], 502, "upstream_truncated", True),
        "breaks off before the last chunk": ([chunked + chunk(text), Fin], 502, "upstream_truncated", True),
        "answers an error": (whole(ERROR), 502, "upstream_error", False),
        "answers something else": (whole({"hello": 1}), 502, "upstream_error", False),
        "fails": (whole(ERROR, 500), 502, "upstream_error", False),
        "refuses": (whole(ERROR, 400), 400, "upstream_refused", False),
        "is busy": (whole(ERROR, 429), 429, "upstream_rate_limited", False),
        "does not end": ([chunked, Forever(chunk(b" " * 999))], 502, "upstream_error", True),
    }


CHUNKED_BODY = b"Transfer-Encoding: chunked\r\n\r\n"
STALLS: dict[str, list[Step]] = {
    "says nothing": [Hold],
    "says no more": [JSON_HEAD + b"Content-Length: 99\r\n\r\n{", Hold],
}


async def test_each_ending_of_an_answer_in_json(place: Place) -> None:
    async with staged(*place, ANSWERS, [*endings({}), "caller leaves"]) as stage:
        for operation, value in ANSWERS.items():
            for case, (script, status, code, _) in endings(value).items():
                answer = await stage.ask(operation, case, script)
                assert (answer.status, answer.error["code"]) == (status, code), (operation, case)
            await stage.leave(operation, "caller leaves", [Hold])
        records = await stage.books()
        for operation, value in ANSWERS.items():
            for case, (_, status, code, sent) in endings(value).items():
                record = records[f"{operation} {case}"]
                assert (record.outcome, record.status, record.error_code) == ("upstream_failed", status, code)
                assert (record.usage_source, len(record.attempts)) == ("estimated" if sent else "none", 1), record
                assert_due(operation, record, whole=False)
            left = records[f"{operation} caller leaves"]
            assert left.outcome == "caller_gone"
            assert_due(operation, left)


async def test_an_upstream_that_stalls_before_an_answer_in_json(place: Place) -> None:
    async with staged(*place, ANSWERS, STALLS) as stage:
        for case, script in STALLS.items():
            answers = await asyncio.gather(*(stage.ask(operation, case, script) for operation in ANSWERS))
            assert {(each.status, each.error["code"]) for each in answers} == {(504, "upstream_timeout")}
        records = await stage.books()
        for operation, case in product(ANSWERS, STALLS):
            record = records[f"{operation} {case}"]
            assert (record.outcome, record.status) == ("upstream_failed", 504)
            assert_due(operation, record, whole=False)


EVENTS: dict[Operation, tuple[object, object]] = {
    Operation.COMPLETIONS: (
        {"choices": [{"index": 0, "text": "Rain falls."}]},
        {"choices": [{"index": 0, "text": "", "finish_reason": "stop"}], "usage": USED},
    ),
    Operation.IMAGES: (
        {"type": "image_generation.partial_image", "b64_json": "AAAA"},
        {"type": "image_generation.completed", "b64_json": "AAAA", "usage": SPENT},
    ),
    Operation.SPEECH: ({"type": "speech.audio.delta", "audio": "AAAA"}, {"type": "speech.audio.done", "usage": SPENT}),
    Operation.TRANSCRIPTIONS: (
        {"type": "transcript.text.delta", "delta": "Rain falls."},
        {"type": "transcript.text.done", "text": "Rain falls.", "usage": SPENT},
    ),
}


def stream_endings(operation: Operation) -> dict[str, tuple[list[Step], int, str]]:
    """Return by name: what the upstream does, the status, and the outcome."""
    first, last = map(sse, EVENTS[operation])
    done = sse(b"[DONE]") if operation is Operation.COMPLETIONS else b""
    typed = sse(ERROR | ({} if operation is Operation.COMPLETIONS else {"type": "error"}))
    begun = CHUNKED + chunk(first)
    return {
        "closes after its end": ([CHUNKED + chunk(first + last + done), Fin], 200, "completed"),
        "an error first": ([CHUNKED + chunk(sse(ERROR)) + LAST], 502, "upstream_failed"),
        "an error with a type first": ([CHUNKED + chunk(typed) + LAST], 502, "upstream_failed"),
        "an error later": ([begun, 0.0, chunk(sse(ERROR)) + LAST], 200, "upstream_error_in_stream"),
        "an error with a type later": ([begun, 0.0, chunk(typed) + LAST], 200, "upstream_error_in_stream"),
        "breaks off": ([begun, 0.0, Fin], 200, "upstream_truncated"),
        "ends early": ([begun + LAST], 200, "upstream_truncated"),
        "an event without an end": ([begun, Forever(chunk(b"data: " + b"x" * 999))], 200, "stopped"),
        "stalls": ([begun, Hold], 200, "upstream_stalled"),
    }


async def test_each_ending_of_a_stream(place: Place) -> None:
    cases = [*stream_endings(Operation.IMAGES), "caller leaves"]
    async with staged(*place, STREAMED, cases) as stage:
        for operation in STREAMED:
            endings = stream_endings(operation)
            first = sse(EVENTS[operation][0])
            for case, (script, status, outcome) in endings.items():
                if case != "stalls":
                    answer = await stage.ask(operation, case, script, stream=True)
                    assert (answer.status, answer.whole) == (status, outcome in ("completed", "upstream_failed")), case
                    assert answer.body.startswith(first) == (status == 200)
            await stage.leave(operation, "caller leaves", endings["stalls"][0], seen=first, stream=True)
            assert (await stage.ask(operation, "stalls", endings["stalls"][0], stream=True)).whole is False
        records = await stage.books()
        for operation in STREAMED:
            for case, (_, status, outcome) in (
                stream_endings(operation) | {"caller leaves": ([], 200, "caller_gone")}
            ).items():
                record = records[f"{operation} {case}"]
                assert (record.outcome, record.status) == (outcome, status), record
                if status == 200:
                    assert_due(operation, record)
                else:
                    assert (record.usage_source, record.charge_micros) == ("none", 0), record
