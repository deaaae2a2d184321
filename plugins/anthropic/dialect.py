"""Anthropic's Messages as an upstream: the dialect `anthropic`, for channels that say `dialect: anthropic`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final

import msgspec

from gateway import AnswerReader, ChatRequest, Dialect, Plugin
from plugins.anthropic.answer import MessageReader, error_of
from plugins.anthropic.request import message_request

SPENT: Final = ("your credit balance is too low", "you have reached your specified api usage limits")
"""How a 400 begins that is about the gateway's account, not about the request."""


class Messages(Dialect):
    """Anthropic's Messages API, version 2023-06-01."""

    name: ClassVar[str] = "anthropic"
    path: ClassVar[str] = "/messages"
    auth: ClassVar[str] = "header x-api-key"
    headers: ClassVar[Mapping[str, str]] = {"anthropic-version": "2023-06-01"}

    def request(self, chat: ChatRequest) -> bytes:
        """Return the body of `POST /v1/messages`."""
        return message_request(chat)

    def reader(self) -> AnswerReader:
        """Return a reader for one message."""
        return MessageReader()

    def error(self, status: int, body: bytes) -> tuple[int, bytes]:
        """Return the error as OpenAI writes it. Of an account of the gateway without credit, Anthropic says 400: that is a 402."""
        kind, message = error_of(body)
        if not message:
            return status, body
        spent = status == 400 and message.lower().startswith(SPENT)
        return (402 if spent else status), msgspec.json.encode({"error": {"message": message, "type": kind}})


class Anthropic(Plugin):
    """Provides the dialect `anthropic`. It has no hooks, so that its place in the list does not matter."""

    API = 1
    dialects: ClassVar[tuple[type[Dialect], ...]] = (Messages,)
