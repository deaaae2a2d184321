"""Answers in JSON: their usage and id, whatever else they are, and errors in the place of answers."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial

import msgspec
import pytest

from gateway.chat.usage import Usage
from gateway.operations.completions import CompletionsFormat
from gateway.operations.input_only import EmbeddingsFormat, ModerationsFormat
from gateway.operations.messages import MessagesFormat, MessageTokensFormat
from gateway.operations.responses import ResponsesFormat
from gateway.operations.wire_format import WireFormat

MESSAGE = b'{"id":"msg_1","content":[{"type":"text","text":"Rain"}],"usage":%b}'
COMPLETION = (
    b'{"id":"cmpl-1","choices":[{"text":"Rain","logprobs":{"tokens":["Rain"]}},{"text":"Snow falls."}],"usage":%b}'
)
RESPONSE = b'{"id":"resp_1","output":[{"content":[{"text":"Rain falls."}]}],"usage":%b,"service_tier":"flex"}'


@pytest.mark.parametrize(
    ("wire", "text", "expected"),
    [
        (
            MessagesFormat(),
            MESSAGE % b'{"input_tokens":3,"cache_read_input_tokens":7,"output_tokens":5}',
            (10, 5, "upstream"),
        ),
        (MessagesFormat(), MESSAGE % b'{"input_tokens":1e400,"output_tokens":5}', (99, 1, "estimated")),
        (MessagesFormat(), MESSAGE % b"[]", (99, 1, "estimated")),
        (ResponsesFormat(), RESPONSE % b'{"input_tokens":3,"output_tokens":5,"total_tokens":8}', (3, 5, "upstream")),
        (ResponsesFormat(), RESPONSE % b"null", (99, 3, "estimated")),
        (CompletionsFormat(), COMPLETION % b'{"prompt_tokens":3,"completion_tokens":5}', (3, 5, "upstream")),
        (CompletionsFormat(), COMPLETION % b"null", (99, 4, "estimated")),
        (EmbeddingsFormat(), b'{"data":[[NaN,"\xff"]],"usage":{"total_tokens":9}}', (9, 0, "upstream")),
        (EmbeddingsFormat(), b'\xef\xbb\xbf{"data":[]}', (99, 0, "estimated")),
        (ModerationsFormat(), b'{"results":[]}', (0, 0, "upstream")),
        (MessageTokensFormat(), b'{"input_tokens":14}', (0, 0, "upstream")),
    ],
)
def test_the_usage_of_an_answer(wire: WireFormat, text: bytes, expected: tuple[int, int, str]) -> None:
    answer = wire.read(text)
    assert answer is not None
    assert (answer.text, answer.error) == (text, False)
    used: Usage = answer.usage.usage(lambda: 99, answer.estimate_output)
    assert (used.prompt_tokens, used.completion_tokens, used.source) == expected
    assert answer.completion_id in ("", "cmpl-1", "msg_1", "resp_1")


OTHERS = [MessagesFormat(), ResponsesFormat(), EmbeddingsFormat(), MessageTokensFormat(), CompletionsFormat()]


@pytest.mark.parametrize("wire", OTHERS)
def test_an_error_is_one_and_anything_else_is_no_answer(wire: WireFormat) -> None:
    error = wire.read(b'{"type":"error","error":{"message":"no"}}')
    assert error is not None
    assert error.error
    assert wire.read(b'{"content":7,"output":7,"data":7,"input_tokens":"7","choices":7}') is None
    assert wire.read(b"[7]") is None
    with pytest.raises(ValueError, match="Expecting"):
        wire.read(b'{"content":[')


def test_an_error_beside_the_choices_of_a_completion_is_one() -> None:
    error = CompletionsFormat().read(b'{"choices":[],"error":{"message":"no"}}')
    assert error is not None
    assert error.error


def test_probabilities_of_a_completion_are_not_decoded() -> None:
    choice = {"text": "ab" * 20_000, "logprobs": {"top_logprobs": [dict.fromkeys(("ab", "cd", "ef"), -0.5)] * 20_000}}
    usage = {"prompt_tokens": 3, "completion_tokens": 20_000}
    text = json.dumps({"id": "cmpl-1", "choices": [choice], "usage": usage}).encode()

    def read() -> None:
        answer = CompletionsFormat().read(text)
        assert answer is not None
        assert (answer.usage.prompt, answer.completion_id, answer.estimate_output()) == (3, "cmpl-1", 10_000)

    def took(what: Callable[[], object]) -> float:
        began = time.process_time()
        what()
        return time.process_time() - began

    decode = partial(msgspec.json.decode, text)
    assert min(took(read) for _ in range(5)) < min(took(decode) for _ in range(5))
