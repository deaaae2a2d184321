"""Dialects of an author who has mistaken something: each is broken in one method. What they read is one JSON value an event."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from gateway import AnswerDelta, AnswerReader, ChatRequest, Dialect, Plugin


class Whole(Dialect):
    """Not broken: an event is the arguments of a delta."""

    name = "whole"
    path = "/whole"

    def request(self, chat: ChatRequest) -> bytes:
        return json.dumps({"model": chat.model, "limit": chat.max_tokens}).encode()

    def reader(self) -> AnswerReader:
        return Reader(lambda event: [AnswerDelta(**event)])


class Reader(AnswerReader):
    def __init__(self, made: Callable[[Any], Any]) -> None:
        self._made = made

    def read(self, name: str, data: bytes) -> Any:
        return self._made(json.loads(data))


class AfterText(AnswerReader):
    """Is broken in the second event."""

    def __init__(self, made: Callable[[Any], Any]) -> None:
        self._made = made
        self._events = 0

    def read(self, name: str, data: bytes) -> Any:
        self._events += 1
        return [AnswerDelta(message={"content": "Hello"})] if self._events == 1 else self._made(json.loads(data))


def forever(event: object) -> Iterator[AnswerDelta]:
    while True:
        yield AnswerDelta()


def leave(event: object) -> list[AnswerDelta]:
    raise SystemExit(3)


READERS: dict[str, Callable[[Any], Any]] = {
    "raises": lambda event: [event["no such key"]],
    "leaves": leave,
    "none": lambda event: None,
    "number": lambda event: 7,
    "texts": lambda event: ["Hello"],
    "mapping": lambda event: {"message": {"content": "Hello"}},
    "forever": forever,
    "message": lambda event: [AnswerDelta(message="Hello")],  # type: ignore[arg-type]
    "content": lambda event: [AnswerDelta(message={"content": 7})],
    "calls": lambda event: [AnswerDelta(message={"tool_calls": {}})],
    "reason": lambda event: [AnswerDelta(finish_reason=None)],  # type: ignore[arg-type]
    "usage": lambda event: [AnswerDelta(usage=[3, 1])],  # type: ignore[arg-type]
    "reported": lambda event: [AnswerDelta(reported="{}")],  # type: ignore[arg-type]
    "error": lambda event: [AnswerDelta(error="no")],  # type: ignore[arg-type]
    "status": lambda event: [AnswerDelta(error={"message": "no"}, status="500")],  # type: ignore[arg-type]
    "id": lambda event: [AnswerDelta(id=7)],  # type: ignore[arg-type]
    "unwritable": lambda event: [AnswerDelta(message={"x": object()})],
}
"""What a reader gives."""


def _raise(*_: object) -> Any:
    raise KeyError("x")


METHODS: dict[str, dict[str, Any]] = {
    "request-raises": {"request": _raise},
    "request-leaves": {"request": lambda self, chat: leave(chat)},
    "request-none": {"request": lambda self, chat: None},
    "request-text": {"request": lambda self, chat: "{}"},
    "request-object": {"request": lambda self, chat: {"model": chat.model}},
    "request-empty": {"request": lambda self, chat: b""},
    "reader-raises": {"reader": _raise},
    "reader-none": {"reader": lambda self: None},
    "reader-object": {"reader": lambda self: object()},
    "error-raises": {"error": _raise},
    "error-none": {"error": lambda self, status, body: None},
    "error-status": {"error": lambda self, status, body: (200, body)},
    "error-text": {"error": lambda self, status, body: (status, "no")},
    **{f"read-{name}": {"reader": lambda self, made=made: Reader(made)} for name, made in READERS.items()},
    **{f"later-{name}": {"reader": lambda self, made=made: AfterText(made)} for name, made in READERS.items()},
}


class Broken(Plugin):
    """Provides a dialect for each of the mistakes."""

    dialects = (Whole, *(type("Wrong", (Whole,), {"name": name, **methods}) for name, methods in METHODS.items()))
