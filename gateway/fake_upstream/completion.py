"""The answer of a well-behaved upstream, in parts that a mode sends, changes or leaves out.

Each word is one token and one event.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from typing import Annotated, Any
from uuid import uuid4

import msgspec
from aiohttp import web
from aiohttp_sse import EventSourceResponse

DONE = "[DONE]"
MAX_QUOTED_WORDS = 40
DEEPEST = 32
"""Levels of a JSON schema that refers to itself."""

Ceiling = Annotated[int, msgspec.Meta(ge=1)]


class ChatMessage(msgspec.Struct):
    """A message of the conversation: text, or a list of parts."""

    role: str
    content: str | list[dict[str, Any]] | None = None

    def words(self) -> list[str]:
        if isinstance(self.content, list):
            return " ".join(str(part.get("text", "")) for part in self.content).split()
        return (self.content or "").split()


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class ChatBody(msgspec.Struct):
    """A chat completion's body: only the fields that the answer depends on."""

    model: str
    messages: list[ChatMessage]
    stream: bool | None = None
    max_tokens: Ceiling | None = None
    max_completion_tokens: Ceiling | None = None
    stream_options: StreamOptions | None = None
    response_format: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None

    def called(self) -> dict[str, str] | None:
        """Return the tool that must be called, with the smallest arguments; none once a tool has answered."""
        if self.messages and self.messages[-1].role == "tool":
            return None
        named = self.tool_choice.get("function") if isinstance(self.tool_choice, dict) else None
        for tool in self.tools or ():
            function = tool.get("function")
            if function and (self.tool_choice == "required" or (named and named.get("name") == function.get("name"))):
                return {"name": function.get("name"), "arguments": _json(smallest(function.get("parameters")) or {})}
        return None

    def reply(self) -> str:
        """Return a text that quotes the last message of the user, or the JSON that is asked for."""
        wanted = self.response_format or {}
        if wanted.get("type") in ("json_schema", "json_object"):
            return _json(smallest((wanted.get("json_schema") or {}).get("schema")) or {})
        from_user = [message for message in self.messages if message.role == "user"]
        quoted = " ".join(from_user[-1].words()[:MAX_QUOTED_WORDS]) if from_user else "nothing"
        return f'You said "{quoted}", and this answer comes one word at a time.'


class Completion:
    """One chat completion. `words` is the text of the answer; `pace_s` passes before each event."""

    events: type[EventSourceResponse] = EventSourceResponse

    def __init__(self, request: web.Request, chat: ChatBody, *, pace_s: float, words: str | None) -> None:
        self.request = request
        self.chat = chat
        self.pace_s = pace_s
        self.called = chat.called() if words is None else None
        text = self.called["arguments"] if self.called else chat.reply() if words is None else words
        all_words = text.split()
        self.words = all_words[: chat.max_completion_tokens or chat.max_tokens]
        self.thoughts = 0
        """Output tokens that are not shown."""
        self.cached: int | None = None
        """Prompt tokens that were read from a cache; None where there is none."""
        self.finish_reason = "tool_calls" if self.called else "stop" if len(self.words) == len(all_words) else "length"
        self._id = f"chatcmpl-{uuid4().hex}"
        self._created = int(time.time())

    def usage(self, completion_tokens: int | None = None) -> dict[str, Any]:
        """Return the token counts; `completion_tokens` replaces the true count of the answer."""
        prompt = sum(len(message.words()) for message in self.chat.messages)
        completion = self.thoughts + len(self.words) if completion_tokens is None else completion_tokens
        details = {} if self.cached is None else {"prompt_tokens_details": {"cached_tokens": self.cached}}
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            **details,
        }

    def content(self, text: str) -> str:
        """Return a chunk with a piece of text."""
        return self._chunk([_choice({"content": text})])

    def reasoning(self, text: str) -> str:
        """Return a chunk with a piece of reasoning."""
        return self._chunk([_choice({"reasoning_content": text})])

    def text(self) -> list[str]:
        """Return the chunk with the role, then one for each word; of a tool that is called, one chunk."""
        if self.called:
            call = {"index": 0, "id": self._id, "type": "function", "function": self.called}
            return [self._chunk([_choice({"role": "assistant", "content": None, "tool_calls": [call]})])]
        spaced = self.words[:1] + [f" {word}" for word in self.words[1:]]
        return [self._chunk([_choice({"role": "assistant", "content": ""})]), *map(self.content, spaced)]

    def half(self) -> list[str]:
        """Return the chunk with the role, then one for each word of the first half."""
        return self.text()[: 1 + (len(self.words) + 1) // 2]

    def finish(self, **fields: object) -> str:
        """Return the chunk with the finish reason, and further top-level fields."""
        return self._chunk([_choice({}, self.finish_reason)], **fields)

    def usage_chunk(self) -> str:
        """Return the chunk with the usage, which has no choices."""
        return self._chunk([], usage=self.usage())

    def ending(self) -> list[str]:
        """Return the finish chunk, the usage chunk if the request asks for it, and `[DONE]`."""
        options = self.chat.stream_options
        usage = [self.usage_chunk()] if options and options.include_usage else []
        return [self.finish(), *usage, DONE]

    def whole(self) -> dict[str, object]:
        """Return the same answer as one JSON object, for requests without `stream: true`."""
        message: dict[str, object] = {"role": "assistant", "content": " ".join(self.words)}
        if self.called:
            message |= {"content": None, "tool_calls": [{"id": self._id, "type": "function", "function": self.called}]}
        choice = {"index": 0, "message": message, "finish_reason": self.finish_reason}
        return self._head("chat.completion") | {"choices": [choice], "usage": self.usage()}

    async def send(self, stream: EventSourceResponse, events: Iterable[str]) -> None:
        """Send the events at the pace."""
        for event in events:
            await asyncio.sleep(self.pace_s)
            await stream.send(event)

    def _head(self, kind: str) -> dict[str, object]:
        return {"id": self._id, "object": kind, "created": self._created, "model": self.chat.model}

    def _chunk(self, choices: list[dict[str, object]], **fields: object) -> str:
        chunk = self._head("chat.completion.chunk") | {"choices": choices} | fields
        return msgspec.json.encode(chunk).decode()


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _choice(delta: Mapping[str, object], finish_reason: str | None = None) -> dict[str, object]:
    return {"index": 0, "delta": delta, "finish_reason": finish_reason}


def smallest(schema: Any, root: Any = None, depth: int = 0) -> Any:
    """Return the smallest value that fits a JSON schema: enough for client libraries to read it."""
    if not isinstance(schema, Mapping) or depth > DEEPEST:
        return None
    root = root or schema
    if "const" in schema or schema.get("enum"):
        return schema["const"] if "const" in schema else schema["enum"][0]
    for name in ("anyOf", "oneOf", "allOf"):
        if schema.get(name):
            return smallest(schema[name][0], root, depth + 1)
    if str(schema.get("$ref", "")).startswith("#"):
        found = root
        for step in schema["$ref"].split("/")[1:]:
            found = found.get(step, {})
        return smallest(found, root, depth + 1)
    kind = schema.get("type", "object" if "properties" in schema else "null")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object":
        fields = schema.get("properties", {})
        return {name: smallest(fields.get(name), root, depth + 1) for name in schema.get("required", ())}
    if kind == "array":
        return [smallest(schema.get("items"), root, depth + 1)] * schema.get("minItems", 0)
    if kind in ("integer", "number"):
        return schema.get("minimum", schema.get("exclusiveMinimum", -1) + 1)
    return {"string": "x" * schema.get("minLength", 0), "boolean": False}.get(kind)


def error(code: str, message: str, *, type: str = "invalid_request_error", param: str | None = None) -> str:  # noqa: A002
    """Return an error in OpenAI's JSON shape: the body of a refusal, or an event of a stream."""
    detail = {"message": message, "type": type, "param": param, "code": code}
    return msgspec.json.encode({"error": detail}).decode()


def refusal(status: int, body: str, headers: dict[str, str] | None = None) -> web.Response:
    """Return a response with a JSON error as its body."""
    return web.Response(status=status, text=body, content_type="application/json", headers=headers)
