"""Completions: texts that go on, as chat completions answer them. Each of several prompts has answers of its own."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import ClassVar, Final

import msgspec

from gateway.chat.answers import Response
from gateway.chat.events import EventStream, WatchedEvents
from gateway.chat.fields import REMEDIES, UNPRICED, FieldNames, check_names, check_option_names
from gateway.chat.prompt import PromptBound
from gateway.chat.request import (
    Body,
    BodyRules,
    check_model,
    check_service_tier,
    field,
    parse_top,
    positive,
)
from gateway.chat.usage import BYTES_PER_TOKEN
from gateway.config.channel import Channel
from gateway.operations.input_only import count_texts
from gateway.operations.typed_events import NULL, part, text_size
from gateway.operations.wire_format import CheckedBody, JsonAnswer, WireFormat

DEFAULT_CEILING: Final = 16
"""The most tokens of an answer without `max_tokens`, as OpenAI's API has it. Other upstreams would go on without end."""
FIELDS: Final = FieldNames(
    ("model", "prompt", "stream", "stream_options", "max_tokens", "n", "best_of", "service_tier"),
    (
        *("suffix", "echo", "logprobs", "stop", "seed", "user", "temperature", "top_p"),
        *("presence_penalty", "frequency_penalty", "logit_bias"),
    ),
    {
        **{name: remedy for name, remedy in REMEDIES.items() if name != "best_of"},
        "max_completion_tokens": "use 'max_tokens'",
        "messages": "send them to POST /v1/chat/completions",
    },
    UNPRICED,
)

_boolean = msgspec.json.Decoder(bool | None)
_options = msgspec.json.Decoder(dict[str, msgspec.Raw] | None)


class CompletionsBody(CheckedBody, frozen=True):
    """A checked body. `n`: how many answers are generated, of which `shown` are sent."""

    shown: int = 1


class _Choice(msgspec.Struct):
    text: msgspec.Raw = NULL


_choices = msgspec.json.Decoder(list[_Choice])


class CompletionAnswer(JsonAnswer, frozen=True):
    """A completion that is not a stream. Its `logprobs` may have megabytes, which are not decoded."""

    usage = Response.usage  # as that of a chat completion

    def estimate_output(self) -> int:
        """Return the estimated tokens of its texts."""
        texts = part(_choices, self.top.get("choices", NULL)) or []
        return -(-sum(text_size(each.text) for each in texts) // BYTES_PER_TOKEN)


class CompletionsFormat(WireFormat):
    """The wire format of `POST /v1/completions`."""

    path = "/completions"
    answer = "a completion"
    rewrites = True
    tried: ClassVar[Mapping[str, object]] = {"prompt": "Hello", "stream": True, "max_tokens": DEFAULT_CEILING}

    def check(self, raw: bytes | bytearray, rules: BodyRules) -> Generator[None, None, Body]:
        """Return the checked body. Raises `Refused`."""
        top = yield from parse_top(raw, rules.max_depth, "'model' and 'prompt'")
        check_names(top, rules.allow_fields, FIELDS)
        model = check_model(top)
        yield
        prompts = count_texts("prompt", top.get("prompt"))
        options = field(top, "stream_options", _options, "an object, or left out") or {}
        check_option_names(options)
        asked_usage = field(options, "include_usage", _boolean, "true or false", prefix="stream_options.")
        n = positive(top, "n", rules.max_n) or 1
        return CompletionsBody(
            model=model,
            stream=bool(field(top, "stream", _boolean, "true or false")),
            max_tokens=positive(top, "max_tokens", rules.max_output_tokens) or DEFAULT_CEILING,
            n=max(n, positive(top, "best_of", rules.max_n) or 1) * prompts,
            asked_usage=bool(asked_usage),
            size=len(raw),
            messages=prompts,
            prompt_tokens_estimate=-(-len(raw) // BYTES_PER_TOKEN),
            prompt_bound=PromptBound(len(raw)),
            _stream_options=options,
            _top=top,
            service_tier=check_service_tier(top, model, rules),
            ceiling="max_tokens",
            options=True,
            shown=n * prompts,
        )

    def events(self, body: Body, channel: Channel, *, gathered: bool, watched: bool) -> EventStream:
        """Return the parser of an answer's events."""
        kind = WatchedEvents if watched else EventStream
        choices = body.shown if isinstance(body, CompletionsBody) else body.n
        return kind(drop_usage=channel.ask_usage and not body.asked_usage, choices=choices)

    def read(self, text: bytes) -> Response | None:
        """Return a completion. Raises `ValueError` for what is no JSON."""
        answer = CompletionAnswer.of(text, "choices")
        return answer if answer is None or answer.top.get("error", NULL) == NULL else Response.read(text)
