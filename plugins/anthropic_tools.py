"""The tools of a chat completion request, and which of them may be called, as Anthropic's Messages has them."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from gateway import ChatRequest, Refused

NO_PARAMETERS: Final = {"type": "object", "properties": {}}
KINDS: Final = {None: "auto", "auto": "auto", "none": "none", "required": "any"}


class _Function(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    description: str | None = None
    parameters: dict[str, msgspec.Raw] | None = None
    strict: bool | None = None


class _Tool(msgspec.Struct):
    type: str = "function"
    function: _Function | None = None
    cache_control: dict[str, msgspec.Raw] | None = None


class _Named(msgspec.Struct):
    name: str


class _Choice(msgspec.Struct):
    type: str
    function: _Named | None = None


def add_tools(body: dict[str, Any], chat: ChatRequest) -> None:
    """Add the tools to the body of a request. Raises `Refused` for those that are no functions, and for other choices."""
    tools = chat.get("tools", list[_Tool])
    choice = chat.get("tool_choice", str | _Choice)
    parallel = chat.get("parallel_tool_calls", bool)
    if isinstance(choice, _Choice):
        if choice.type != "function" or choice.function is None or not tools:
            raise _unsupported("tool_choice")
        chosen: dict[str, Any] = {"type": "tool", "name": choice.function.name}
    else:
        kind = KINDS.get(choice)
        if kind is None or (kind == "any" and not tools):
            raise _unsupported("tool_choice")
        chosen = {"type": kind}
    if not tools:
        return
    body["tools"] = [_tool(tool) for tool in tools]
    if parallel is False and chosen["type"] != "none":
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
    if function.strict:
        said["strict"] = True
    if tool.cache_control:
        said["cache_control"] = {"type": "ephemeral"}
    return said


def _unsupported(param: str) -> Refused:
    text = (
        f"'{param}' asks for something that the upstream of this model cannot do: change it, or choose another model."
    )
    return Refused(400, "invalid_request", text, param=param)
