"""Answers as the documentation of the APIs and their servers shows them: relayed as they came, with the usage that they tell.

Each shape is written in five ways, and each stream is cut at each byte.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from gateway.chat.answers import Response
from gateway.chat.events import EventStream
from gateway.chat.request import BodyRules, checked
from gateway.chat.usage import Usage
from gateway.config.channel import Channel
from gateway.operations.form import FORM, written
from gateway.operations.operation import SERVED, Operation
from tests.operations.test_message_events import _feed

Told = tuple[int, int, int | None]
"""Tokens of the prompt and of the output, and units; zeros where nothing is told."""

VECTOR = {"object": "embedding", "index": 0, "embedding": [0.0023064255, -0.009327292, 1e-7]}
SCORE = {"index": 3, "relevance_score": 0.98}
CATEGORIES = {"flagged": True, "categories": {"violence": True}, "category_scores": {"violence": 0.99}}
OF_TEXT = {"index": 0, "text": " Tokyo \u2614", "finish_reason": "length", "logprobs": None}
CMPL = {"id": "cmpl-7", "object": "text_completion", "created": 1, "model": "m"}
USED = {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}
HELLO = {"text": "Hello there."}
PICTURE = {"b64_json": "iVBORw0KGgo="}
TOKENS = {"type": "tokens", "input_tokens": 14, "output_tokens": 45, "total_tokens": 59}
WITH_DETAILS = TOKENS | {"input_token_details": {"text_tokens": 10, "audio_tokens": 4}}
OF_PICTURES = {
    "total_tokens": 100,
    "input_tokens": 50,
    "output_tokens": 50,
    "input_tokens_details": {"text_tokens": 50},
}

SHAPES: dict[Operation, list[tuple[dict[str, Any], Told]]] = {
    Operation.EMBEDDINGS: [
        # OpenAI, with numbers and in base64; llama.cpp; Voyage; Mistral; Jina; Gemini, which tells no usage.
        (
            {"object": "list", "data": [VECTOR], "model": "m", "usage": {"prompt_tokens": 8, "total_tokens": 8}},
            (8, 0, None),
        ),
        (
            {"data": [VECTOR | {"embedding": "AACAPw=="}], "usage": {"prompt_tokens": 8, "total_tokens": 8}},
            (8, 0, None),
        ),
        ({"model": "m", "usage": {"prompt_tokens": 4, "total_tokens": 4}, "data": [VECTOR]}, (4, 0, None)),
        ({"object": "list", "data": [VECTOR, VECTOR], "usage": {"total_tokens": 10}}, (10, 0, None)),
        ({"id": "e", "data": [VECTOR], "usage": USED | {"completion_tokens": 0, "total_tokens": 5}}, (5, 0, None)),
        ({"data": [VECTOR], "usage": {"total_tokens": 6, "prompt_tokens": 6, "images": None}}, (6, 0, None)),
        ({"object": "list", "data": [VECTOR]}, (0, 0, None)),
    ],
    Operation.RERANK: [
        # Jina, vLLM, Cohere, Voyage, Together.
        ({"model": "m", "usage": {"total_tokens": 815}, "results": [SCORE | {"document": HELLO}]}, (815, 0, None)),
        ({"id": "r", "model": "m", "usage": {"total_tokens": 56}, "results": [SCORE]}, (56, 0, None)),
        ({"id": "r", "results": [SCORE], "meta": {"billed_units": {"search_units": 1}}}, (0, 0, None)),
        ({"object": "list", "data": [SCORE], "model": "m", "usage": {"total_tokens": 26}}, (26, 0, None)),
        ({"results": [SCORE], "usage": USED | {"completion_tokens": 0, "total_tokens": 5}}, (5, 0, None)),
    ],
    Operation.MODERATIONS: [
        # OpenAI, of one text and of two; Mistral; llama-guard behind a server of OpenAI's API.
        ({"id": "modr-1", "model": "omni", "results": [CATEGORIES]}, (0, 0, None)),
        ({"id": "modr-1", "model": "omni", "results": [CATEGORIES, CATEGORIES]}, (0, 0, None)),
        ({"id": "m", "model": "m", "usage": USED, "results": [CATEGORIES]}, (0, 0, None)),
        ({"results": [], "model": "m"}, (0, 0, None)),
    ],
    Operation.COMPLETIONS: [
        # OpenAI, vLLM, llama.cpp, DeepSeek, and a server that tells nothing.
        (CMPL | {"choices": [OF_TEXT], "usage": USED}, (5, 7, None)),
        (CMPL | {"choices": [OF_TEXT | {"stop_reason": None, "prompt_logprobs": None}], "usage": USED}, (5, 7, None)),
        (CMPL | {"usage": USED, "choices": [OF_TEXT], "timings": {"prompt_n": 5}}, (5, 7, None)),
        (CMPL | {"choices": [OF_TEXT], "usage": USED | {"prompt_cache_hit_tokens": 2}}, (5, 7, None)),
        (CMPL | {"choices": [OF_TEXT]}, (0, 3, None)),
    ],
    Operation.IMAGES: [
        # OpenAI's newer models and its older ones, Together, xAI.
        ({"created": 1, "data": [PICTURE], "size": "1024x1024", "quality": "high", "usage": OF_PICTURES}, (50, 50, 1)),
        ({"created": 1, "data": [{"url": "https://h/1.png"}, {"url": "https://h/2.png"}]}, (0, 0, 2)),
        ({"id": "i", "model": "m", "object": "list", "data": [{"index": 0, **PICTURE}]}, (0, 0, 1)),
        ({"data": [PICTURE | {"revised_prompt": "a \u2614"}] * 3}, (0, 0, 3)),
    ],
    Operation.TRANSCRIPTIONS: [
        # OpenAI by tokens, by seconds, in the two longer forms, and Groq. The seconds are the file's, whatever is told.
        (HELLO | {"usage": WITH_DETAILS}, (14, 45, None)),
        (HELLO | {"usage": {"type": "duration", "seconds": 9}}, (0, 0, None)),
        (HELLO | {"task": "transcribe", "language": "en", "duration": 8.47, "segments": [{"id": 0}]}, (0, 0, None)),
        ({"duration": 27.4, "segments": [{"speaker": "A", **HELLO}], "task": "t", **HELLO}, (0, 0, None)),
        (HELLO | {"x_groq": {"id": "req_1"}}, (0, 0, None)),
    ],
    Operation.MESSAGE_TOKENS: [
        ({"input_tokens": 2095}, (0, 0, None)),
        ({"input_tokens": 70, "context_management": {"original_input_tokens": 2095}}, (0, 0, None)),
        ({"input_tokens": 0}, (0, 0, None)),
        ({"input_tokens": 14, "cache_creation_input_tokens": 0}, (0, 0, None)),
    ],
    Operation.RESPONSE_TOKENS: [
        ({"object": "response.input_tokens", "input_tokens": 11}, (0, 0, None)),
        ({"input_tokens": 11, "object": "response.input_tokens", "model": "m"}, (0, 0, None)),
        ({"input_tokens": 0, "object": "response.input_tokens"}, (0, 0, None)),
        ({"input_tokens": 1_000_000}, (0, 0, None)),
    ],
}
SHAPES[Operation.IMAGE_EDITS] = SHAPES[Operation.IMAGE_VARIATIONS] = SHAPES[Operation.IMAGES]
SHAPES[Operation.TRANSLATIONS] = SHAPES[Operation.TRANSCRIPTIONS]
WAYS: dict[str, Callable[[Any], str]] = {
    "plain": json.dumps,
    "compact": lambda value: json.dumps(value, separators=(",", ":"), ensure_ascii=False),
    "in lines": lambda value: json.dumps(value, indent=2).replace("\n", "\r\n") + "\n",
    "backwards": lambda value: json.dumps(dict(reversed(value.items()))),
    "with more": lambda value: json.dumps({"new": {"usage": [1, {"a": "}"}]}, **value, "newer": None}, indent="\t"),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("operation", SHAPES)
def test_each_answer_in_json_is_read(operation: Operation, way: str) -> None:
    for shape, told in SHAPES[operation]:
        text = WAYS[way](shape).encode()
        answer = SERVED[operation].read(text)
        assert isinstance(answer, Response), shape
        assert (answer.text, answer.error) == (text, False)
        usage = answer.usage.usage(lambda: 0, answer.estimate_output)
        assert (usage.prompt_tokens, usage.completion_tokens, answer.usage.units) == told, shape


def test_there_are_twenty_of_each() -> None:
    assert min(len(shapes) * len(WAYS) for shapes in SHAPES.values()) >= 20


def named(kind: str, **fields: Any) -> tuple[str, dict[str, Any]]:
    return kind, {"type": kind, **fields}


def chunk(**fields: Any) -> tuple[str, dict[str, Any]]:
    return "", CMPL | fields


PARTIAL = named("image_generation.partial_image", partial_image_index=0, size="1024x1024", **PICTURE)
MADE = named("image_generation.completed", size="1024x1024", quality="high", usage=OF_PICTURES, **PICTURE)
CHANGED = [
    (kind.replace("generation", "edit"), fields | {"type": fields["type"].replace("generation", "edit")})
    for kind, fields in (PARTIAL, MADE)
]
SPOKEN = [named("speech.audio.delta", audio="SUQzBAAA"), named("speech.audio.delta", audio="AAAA")]
SAID = [named("transcript.text.delta", delta="Hello", logprobs=[]), named("transcript.text.delta", delta=" there.")]
SEGMENT = named("transcript.text.segment", id="seg_1", start=0, end=3.4, speaker="A", **HELLO)
TEXTS = [chunk(choices=[OF_TEXT | {"finish_reason": None}]), chunk(choices=[OF_TEXT | {"text": ""}])]
DONE: tuple[str, dict[str, Any]] = ("", {})
"""`[DONE]`."""
STREAMS: list[tuple[Operation, list[tuple[str, dict[str, Any]]], Told]] = [
    (Operation.IMAGES, [MADE], (50, 50, 1)),
    (Operation.IMAGES, [PARTIAL, PARTIAL, MADE], (50, 50, 1)),
    (Operation.IMAGES, [PARTIAL, named("image_generation.new"), MADE, DONE], (50, 50, 1)),
    (Operation.IMAGES, [PARTIAL, named("image_generation.completed", **PICTURE)], (0, 0, 1)),
    (Operation.IMAGE_EDITS, CHANGED, (50, 50, 1)),
    (Operation.IMAGE_EDITS, CHANGED[1:], (50, 50, 1)),
    (Operation.SPEECH, [*SPOKEN, named("speech.audio.done", usage=TOKENS)], (14, 45, None)),
    (Operation.SPEECH, [*SPOKEN, named("speech.audio.done")], (0, 0, None)),
    (Operation.SPEECH, [named("speech.audio.done", usage=TOKENS)], (14, 45, None)),
    (
        Operation.SPEECH,
        [named("speech.audio.info", voice="v"), *SPOKEN, named("speech.audio.done", usage=None)],
        (0, 0, None),
    ),
    (Operation.TRANSCRIPTIONS, [*SAID, named("transcript.text.done", usage=WITH_DETAILS, **HELLO)], (14, 45, None)),
    (Operation.TRANSCRIPTIONS, [*SAID, named("transcript.text.done", **HELLO)], (0, 0, None)),
    (Operation.TRANSCRIPTIONS, [SEGMENT, named("transcript.text.done", usage=TOKENS, **HELLO)], (14, 45, None)),
    (
        Operation.TRANSCRIPTIONS,
        [*SAID, named("transcript.text.done", usage={"type": "duration", "seconds": 9}, **HELLO)],
        (0, 0, None),
    ),
    (Operation.COMPLETIONS, [*TEXTS, chunk(choices=[], usage=USED), DONE], (5, 7, None)),
    (Operation.COMPLETIONS, [TEXTS[0], chunk(choices=[OF_TEXT], usage=USED), DONE], (5, 7, None)),
    (Operation.COMPLETIONS, [TEXTS[0], chunk(choices=[OF_TEXT | {"text": ""}], usage=USED)], (5, 7, None)),
    (
        Operation.COMPLETIONS,
        [chunk(choices=[OF_TEXT | {"finish_reason": None}], usage=None), *TEXTS, DONE],
        (0, 0, None),
    ),
    (Operation.COMPLETIONS, [TEXTS[0], chunk(choices=[OF_TEXT], usage=USED | {"cost": 0.01}, x=1), DONE], (5, 7, None)),
]
ENDS = {"LF": "\n", "CRLF": "\r\n", "CR": "\r", "without names": "\n", "with comments": "\n"}


def stream_of(events: list[tuple[str, dict[str, Any]]], way: str) -> bytes:
    end, text = ENDS[way], ""
    for kind, fields in events:
        if way == "with comments":
            text += f": ping{end}{end}"
        if kind and way != "without names":
            text += f"event: {kind}{end}"
        text += f"data: {json.dumps(fields) if fields else '[DONE]'}{end}{end}"
    return text.encode()


@pytest.mark.parametrize("way", ENDS)
def test_each_stream_is_relayed_as_it_came_wherever_it_is_cut(way: str) -> None:
    found = Counter[Operation]()
    for operation, shape, told in STREAMS:
        wire, channel = SERVED[operation], Channel("http://h/v1")
        sample = wire.sample("m", "max_tokens")
        if operation is Operation.COMPLETIONS:
            sample["stream_options"] = {"include_usage": True}
        raw = written(sample) if wire.accepts == FORM else json.dumps(sample).encode()
        body = checked(wire.check(raw, BodyRules()))
        data, usages = stream_of(shape, way), set[Usage]()

        def parser() -> EventStream:
            return wire.events(body, channel, gathered=False, watched=False)  # noqa: B023

        for cut in range(1, len(data)):
            events = parser()
            relayed = _feed(events, data[:cut]) + _feed(events, data[cut:]) + events.close()
            assert relayed == data, (shape, cut)
            assert (events.complete, events.error) == (True, None), (shape, cut)
            usages.add(events.usage.usage(lambda: 0, events.output.tokens))
        (usage,) = usages
        assert events.usage.units == told[2], shape
        assert told[0] == 0 or (usage.prompt_tokens, usage.completion_tokens) == told[:2], shape
        found[operation] += 1
    assert sum(found.values()) == len(STREAMS)
