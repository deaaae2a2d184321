"""Content of a request and its answer as attributes of a span, in OpenTelemetry's semantic conventions for generative AI.

`gen_ai.input.messages`, `gen_ai.output.messages` and `gen_ai.tool.definitions`, each as JSON, in the shapes of the conventions'
schemas.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from plugins.content_log import Said, said

SUFFIX: Final = ";base64,"
MODALITIES: Final = {"image_url": "image", "input_audio": "audio", "file": "document", "video_url": "video"}
FINISH_REASONS: Final = {"tool_calls": "tool_call", "function_call": "tool_call"}


class SpanContent(msgspec.Struct):
    """A fact: the content of a request whose trace is sent. What was too large is empty."""

    messages: bytes = b""
    tools: bytes = b""
    events: list[bytes] = []
    whole: bytes = b""
    size: int = 0

    def attributes(self) -> dict[str, Any]:
        """Return the attributes of the span."""
        found: dict[str, Any] = {}
        answers = said(self.events, self.whole)
        if messages := _decoded(self.messages):
            found["gen_ai.input.messages"] = _json([_message(each) for each in messages if isinstance(each, dict)])
        if answers:
            found["gen_ai.output.messages"] = _json([_answer(each) for each in answers])
            if reasons := [each.finish_reason for each in answers if each.finish_reason]:
                found["gen_ai.response.finish_reasons"] = reasons
        if tools := [_tool(each) for each in _decoded(self.tools) if isinstance(each, dict)]:
            found["gen_ai.tool.definitions"] = _json(tools)
        return found


def _decoded(raw: bytes) -> list[Any]:
    try:
        value = msgspec.json.decode(raw) if raw else []
    except (msgspec.DecodeError, RecursionError):
        return []
    return value if isinstance(value, list) else []


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _message(message: dict[str, Any]) -> dict[str, Any]:
    role = str(message.get("role", ""))
    if role in ("tool", "function"):
        part: dict[str, Any] = {"type": "tool_call_response", "response": message.get("content")}
        if identity := message.get("tool_call_id"):
            part["id"] = identity
        return {"role": role, "parts": [part]}
    parts = [*_parts(message.get("content")), *_calls(message)]
    if reasoning := message.get("reasoning_content") or message.get("reasoning"):
        parts.insert(0, {"type": "reasoning", "content": reasoning})
    if refusal := message.get("refusal"):
        parts.append({"type": "refusal", "content": refusal})
    name = {"name": message["name"]} if isinstance(message.get("name"), str) else {}
    return {"role": role, "parts": parts, **name}


def _parts(content: Any) -> Iterator[dict[str, Any]]:
    if isinstance(content, str):
        yield {"type": "text", "content": content}
    for part in content if isinstance(content, list) else ():
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "text":
            yield {"type": "text", "content": part.get("text", "")}
        elif kind in MODALITIES and isinstance(part.get(kind), dict):
            yield _media(MODALITIES[kind], part[kind])
        elif isinstance(part, dict):
            yield {**part, "type": str(kind)}


def _media(modality: str, media: dict[str, Any]) -> dict[str, Any]:
    """Return a part that is a picture, a sound or a file: its bytes, its address or its id."""
    if identity := media.get("file_id"):
        return {"type": "file", "modality": modality, "file_id": identity}
    where = str(media.get("url") or media.get("file_data") or "")
    kind, separator, data = where.partition(SUFFIX)
    if where and not separator:
        return {"type": "uri", "modality": modality, "uri": where}
    mime = kind.removeprefix("data:") if separator else f"audio/{media.get('format', '')}"
    return {"type": "blob", "modality": modality, "mime_type": mime, "content": data or str(media.get("data", ""))}


def _calls(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        function = (call.get("function") or call.get("custom")) if isinstance(call, dict) else None
        if isinstance(function, dict):
            arguments = function.get("arguments", function.get("input"))
            yield _call(call.get("id"), function.get("name"), arguments)
    if isinstance(function := message.get("function_call"), dict):
        yield _call(None, function.get("name"), function.get("arguments"))


def _call(identity: Any, name: Any, arguments: Any) -> dict[str, Any]:
    call = {"type": "tool_call", "name": str(name or ""), "arguments": _object(arguments)}
    return {**call, "id": identity} if identity else call


def _object(arguments: Any) -> Any:
    """Return arguments that are JSON as what they say."""
    try:
        return msgspec.json.decode(arguments) if isinstance(arguments, str) else arguments
    except (msgspec.DecodeError, RecursionError):
        return arguments


def _answer(answer: Said) -> dict[str, Any]:
    parts: list[dict[str, Any]] = []
    if answer.reasoning:
        parts.append({"type": "reasoning", "content": answer.reasoning})
    if answer.content:
        parts.append({"type": "text", "content": answer.content})
    if answer.refusal:
        parts.append({"type": "refusal", "content": answer.refusal})
    parts += [_call(call["id"], call["name"], call["arguments"]) for call in answer.calls.values()]
    reason = FINISH_REASONS.get(answer.finish_reason, answer.finish_reason) or "error"
    return {"role": "assistant", "parts": parts, "finish_reason": reason}


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    kind = str(tool.get("type", "function"))
    function = tool.get(kind)
    return {
        "type": kind,
        "name": str(function.get("name", "") if isinstance(function, dict) else tool.get("name", kind)),
    }
