"""The answer of a good upstream, in the parts that a mode plays, bends or leaves out.

One word is one token and one event.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Annotated, Any
from uuid import uuid4

import msgspec
from aiohttp import web
from aiohttp_sse import EventSourceResponse

DONE = "[DONE]"
LONGEST_ECHO = 40

Ceiling = Annotated[int, msgspec.Meta(ge=1)]


class Message(msgspec.Struct):
    role: str
    content: str | list[dict[str, Any]] | None = None

    def words(self) -> list[str]:
        if isinstance(self.content, list):
            return " ".join(str(part.get("text", "")) for part in self.content).split()
        return (self.content or "").split()


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class Ask(msgspec.Struct):
    """The fields of a request's body that the answer depends on."""

    model: str
    messages: list[Message]
    stream: bool | None = None
    max_tokens: Ceiling | None = None
    max_completion_tokens: Ceiling | None = None
    stream_options: StreamOptions | None = None

    def reply(self) -> str:
        """What there is to say about the last message of the user."""
        of_user = [message for message in self.messages if message.role == "user"]
        said = " ".join(of_user[-1].words()[:LONGEST_ECHO]) if of_user else "nothing"
        return f'You said "{said}", and this answer comes one word at a time.'


class Completion:
    """One request for a completion. `words` is the answer; `pace_s` passes before each event."""

    def __init__(self, request: web.Request, ask: Ask, *, pace_s: float, words: str | None) -> None:
        self.request = request
        self.ask = ask
        self.pace_s = pace_s
        all_words = (ask.reply() if words is None else words).split()
        self.words = all_words[: ask.max_completion_tokens or ask.max_tokens]
        self.finish_reason = "stop" if len(self.words) == len(all_words) else "length"
        self._id = f"chatcmpl-{uuid4().hex}"
        self._created = int(time.time())

    def usage(self, completion_tokens: int | None = None) -> dict[str, int]:
        """Tokens of the prompt, and of the answer or of its first part."""
        prompt = sum(len(message.words()) for message in self.ask.messages)
        completion = len(self.words) if completion_tokens is None else completion_tokens
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
        }

    def content(self, text: str) -> str:
        return self._chunk([_choice({"content": text})])

    def text(self) -> list[str]:
        """The role, then each word."""
        spaced = self.words[:1] + [f" {word}" for word in self.words[1:]]
        return [self._chunk([_choice({"role": "assistant", "content": ""})]), *map(self.content, spaced)]

    def half(self) -> list[str]:
        """The role, then each word of the first half."""
        return self.text()[: 1 + (len(self.words) + 1) // 2]

    def finish(self, **beside: object) -> str:
        return self._chunk([_choice({}, self.finish_reason)], **beside)

    def usage_chunk(self) -> str:
        return self._chunk([], usage=self.usage())

    def ending(self) -> list[str]:
        """The finish, the usage where it was asked for, and `[DONE]`."""
        options = self.ask.stream_options
        usage = [self.usage_chunk()] if options and options.include_usage else []
        return [self.finish(), *usage, DONE]

    def whole(self) -> dict[str, object]:
        """The same answer for who did not ask for a stream."""
        message = {"role": "assistant", "content": " ".join(self.words)}
        choice = {"index": 0, "message": message, "finish_reason": self.finish_reason}
        return self._head("chat.completion") | {"choices": [choice], "usage": self.usage()}

    async def play(self, stream: EventSourceResponse, events: Iterable[str]) -> None:
        for event in events:
            await asyncio.sleep(self.pace_s)
            await stream.send(event)

    def _head(self, kind: str) -> dict[str, object]:
        return {"id": self._id, "object": kind, "created": self._created, "model": self.ask.model}

    def _chunk(self, choices: list[dict[str, object]], **beside: object) -> str:
        chunk = self._head("chat.completion.chunk") | {"choices": choices} | beside
        return msgspec.json.encode(chunk).decode()


def _choice(delta: dict[str, str], finish_reason: str | None = None) -> dict[str, object]:
    return {"index": 0, "delta": delta, "finish_reason": finish_reason}


def error(code: str, message: str, *, type: str = "invalid_request_error", param: str | None = None) -> str:  # noqa: A002
    """An error as OpenAI words it: the body of a refusal, or an event of a stream."""
    detail = {"message": message, "type": type, "param": param, "code": code}
    return msgspec.json.encode({"error": detail}).decode()


def refusal(status: int, body: str, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(status=status, text=body, content_type="application/json", headers=headers)
