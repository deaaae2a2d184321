"""A chat completion request, written as a request of Anthropic's Messages.

Fields without an equal, such as `seed` or `logit_bias`, are not sent. What would change the answer's form or its price is refused,
so that a channel of another kind may serve the request: tools of the upstream's own, sounds, JSON without a schema, probabilities.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from gateway import ChatRequest, Refused
from plugins.anthropic_messages import messages_of

PASSED_ON: Final = ("top_p", "top_k", "thinking", "output_config")
"""Fields that mean the same there, or that only Anthropic has. `speed`, `service_tier` and `inference_geo` change the price."""
UNSUPPORTED: Final = ("functions", "function_call", "audio", "web_search_options", "logprobs", "top_logprobs")
MOST_TEMPERATURE: Final = 1
NO_PARAMETERS: Final = {"type": "object", "properties": {}}


class _Function(msgspec.Struct):
    name: str
    description: str | None = None
    parameters: dict[str, msgspec.Raw] | None = None


class _Tool(msgspec.Struct):
    type: str = "function"
    function: _Function | None = None
    cache_control: dict[str, msgspec.Raw] | None = None


class _Named(msgspec.Struct):
    name: str


class _Choice(msgspec.Struct):
    type: str
    function: _Named | None = None


class _Schema(msgspec.Struct):
    schema: dict[str, msgspec.Raw]


class _Format(msgspec.Struct):
    type: str
    json_schema: _Schema | None = None


def message_request(chat: ChatRequest) -> bytes:
    """Return the body of a request. Raises `Refused` for what Messages cannot do."""
    for name in UNSUPPORTED:
        if chat.get(name):
            raise _unsupported(name)
    system, messages = messages_of(chat)
    body: dict[str, Any] = {"model": chat.model, "max_tokens": chat.max_tokens, "messages": messages, "stream": True}
    if system:
        body["system"] = system
    if (temperature := chat.get("temperature", float)) is not None:
        body["temperature"] = min(temperature, MOST_TEMPERATURE)
    stop = chat.get("stop", str | list[str])
    if stop:
        body["stop_sequences"] = [stop] if isinstance(stop, str) else stop
    if user := chat.get("user", str):
        body["metadata"] = {"user_id": user}
    body |= {name: chat.fields[name] for name in PASSED_ON if chat.get(name) is not None}
    _add_tools(body, chat)
    _add_format(body, chat)
    return msgspec.json.encode(body)


def _add_tools(body: dict[str, Any], chat: ChatRequest) -> None:
    tools = chat.get("tools", list[_Tool])
    choice = chat.get("tool_choice", str | _Choice)
    if not tools:
        return
    body["tools"] = [_tool(tool) for tool in tools]
    if isinstance(choice, _Choice):
        if choice.function is None:
            raise _unsupported("tool_choice")
        chosen: dict[str, Any] = {"type": "tool", "name": choice.function.name}
    else:
        kind = {None: "auto", "auto": "auto", "none": "none", "required": "any"}.get(choice)
        if kind is None:
            raise _unsupported("tool_choice")
        chosen = {"type": kind}
    if chat.get("parallel_tool_calls", bool) is False and chosen["type"] != "none":
        chosen["disable_parallel_tool_use"] = True
    if choice is not None or len(chosen) > 1:
        body["tool_choice"] = chosen


def _tool(tool: _Tool) -> dict[str, Any]:
    if tool.type != "function" or tool.function is None:
        raise _unsupported("tools")
    function = tool.function
    said: dict[str, Any] = {"name": function.name, "input_schema": function.parameters or NO_PARAMETERS}
    if function.description:
        said["description"] = function.description
    if tool.cache_control:
        said["cache_control"] = {"type": "ephemeral"}
    return said


def _add_format(body: dict[str, Any], chat: ChatRequest) -> None:
    wanted = chat.get("response_format", _Format)
    if wanted is None or wanted.type == "text":
        return
    if wanted.type != "json_schema" or wanted.json_schema is None:
        raise _unsupported("response_format")
    config = chat.get("output_config", dict[str, msgspec.Raw]) or {}
    body["output_config"] = {**config, "format": {"type": "json_schema", "schema": wanted.json_schema.schema}}


def _unsupported(param: str) -> Refused:
    text = (
        f"'{param}' asks for something that the upstream of this model cannot do: change it, or choose another model."
    )
    return Refused(400, "invalid_request", text, param=param)
