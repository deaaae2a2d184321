"""A chat completion request, written as a request of Anthropic's Messages.

No field changes its meaning on the way. What Messages cannot do is refused by the name of its field, so that a channel of another
kind may serve the request; left out is only what has no bearing on the answer, or asks for what would be anyway (`LEFT_OUT`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from gateway import ChatRequest, Refused
from plugins.anthropic_messages import messages_of
from plugins.anthropic_tools import add_tools

PASSED_ON: Final = ("top_k", "thinking", "output_config")
"""Fields that only Anthropic has."""
TRANSLATED: Final = frozenset(
    (
        *(
            "messages",
            "temperature",
            "top_p",
            "stop",
            "user",
            "safety_identifier",
            "reasoning_effort",
            "response_format",
        ),
        *("tools", "tool_choice", "parallel_tool_calls", *PASSED_ON),
    )
)
LEFT_OUT: Final[Mapping[str, tuple[Any, ...] | None]] = {
    **dict.fromkeys(("metadata", "store", "prediction", "seed")),
    **dict.fromkeys(("prompt_cache_key", "prompt_cache_retention", "prompt_cache_options")),
    **dict.fromkeys(("frequency_penalty", "presence_penalty", "top_logprobs"), (0,)),
    "logprobs": (False,),
    "logit_bias": ({},),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "verbosity": ("medium",),
    "service_tier": ("auto", "default", "standard_only"),
    "speed": ("standard",),
}
"""Fields that are not sent: with any value, or with these, which ask for nothing. `seed` asks for no more than an effort."""
EFFORTS: Final = ("low", "medium", "high", "xhigh", "max")
MOST_TEMPERATURE: Final = 1


class _Schema(msgspec.Struct):
    schema: dict[str, msgspec.Raw]


class _Format(msgspec.Struct):
    type: str
    json_schema: _Schema | None = None


def message_request(chat: ChatRequest) -> bytes:
    """Return the body of a request. Raises `Refused` for what Messages cannot do."""
    _check_fields(chat)
    system, messages = messages_of(chat)
    body: dict[str, Any] = {"model": chat.model, "max_tokens": chat.max_tokens, "messages": messages, "stream": True}
    if system:
        body["system"] = system
    _add_settings(body, chat)
    add_tools(body, chat)
    _add_output(body, chat)
    return msgspec.json.encode(body)


def _check_fields(chat: ChatRequest) -> None:
    for name in chat.fields:
        if name in TRANSLATED:
            continue
        asks_nothing = LEFT_OUT.get(name, ())
        if asks_nothing is not None and (value := chat.get(name)) is not None and value not in asks_nothing:
            raise _unsupported(name)


def _add_settings(body: dict[str, Any], chat: ChatRequest) -> None:
    if (temperature := chat.get("temperature", float)) is not None:
        if temperature > MOST_TEMPERATURE:
            raise _unsupported("temperature", f"is at most {MOST_TEMPERATURE} for the upstream of this model")
        body["temperature"] = temperature
    if (top_p := chat.get("top_p", float)) is not None:
        body["top_p"] = top_p
    stop = chat.get("stop", str | list[str])
    sequences = [stop] if isinstance(stop, str) and stop else stop or []
    if not all(map(str.strip, sequences)):
        raise _unsupported("stop", "must have more than blanks for the upstream of this model")
    if sequences:
        body["stop_sequences"] = sequences
    if user := (chat.get("safety_identifier", str) or chat.get("user", str)):
        body["metadata"] = {"user_id": user}
    body |= {name: chat.fields[name] for name in PASSED_ON if chat.get(name) is not None}


def _add_output(body: dict[str, Any], chat: ChatRequest) -> None:
    """Add the effort and the form of the answer, which Anthropic has in one field."""
    config = chat.get("output_config", dict[str, msgspec.Raw]) or {}
    effort, wanted = chat.get("reasoning_effort", str), chat.get("response_format", _Format)
    if effort == "none" and chat.get("thinking") is None:
        body["thinking"] = {"type": "disabled"}
    elif effort is not None:
        if effort not in EFFORTS or "effort" in config:
            raise _unsupported("reasoning_effort")
        config["effort"] = msgspec.Raw(msgspec.json.encode(effort))
    if wanted is not None and wanted.type != "text":
        if wanted.type != "json_schema" or wanted.json_schema is None or "format" in config:
            raise _unsupported("response_format")
        format_ = {"type": "json_schema", "schema": wanted.json_schema.schema}
        config["format"] = msgspec.Raw(msgspec.json.encode(format_))
    if config:
        body["output_config"] = config


def _unsupported(param: str, reason: str = "asks for something that the upstream of this model cannot do") -> Refused:
    shown = ascii(param[:64])[1:-1]
    text = f"'{shown}' {reason}: change it, leave it out, or choose another model."
    return Refused(400, "invalid_request", text, param=shown)
