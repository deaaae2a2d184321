"""The files of the content log: one line of JSON for each request, a file a day for each worker. Writing blocks."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import msgspec

SUFFIX: Final = ".jsonl"
REDACTED: Final = "[redacted]"


class Content(msgspec.Struct):
    """What one request asked and was answered, until its line is written. `about`: who asked, and how it ended."""

    messages: bytes
    events: list[bytes] = []
    size: int = 0
    about: dict[str, object] = {}


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    index: int = 0


class _Event(msgspec.Struct):
    choices: list[_Choice] = []


class ContentFiles:
    """The files of one folder. What matches one of `patterns` is written as `[redacted]`. Raises `OSError`."""

    def __init__(
        self, folder: Path, patterns: Sequence[re.Pattern[str]], retention_days: int, max_waiting: int
    ) -> None:
        self._folder = folder
        self._patterns = patterns
        self._retention_days = retention_days
        self._max_waiting = max_waiting
        self._waiting: list[Content] = []
        self._bytes = 0
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def add(self, content: Content) -> bool:
        """Let a request wait to be written; return whether there was room for it."""
        if self._bytes + content.size > self._max_waiting:
            return False
        self._bytes += content.size
        self._waiting.append(content)
        return True

    def take(self) -> list[Content]:
        """Return what waits, and make room for as much."""
        waiting, self._waiting, self._bytes = self._waiting, [], 0
        return waiting

    def write(self, contents: Iterable[Content], now_s: float) -> int:
        """Append a line for each, and remove the files that are too old. Return how many cannot be read. Raises `OSError`."""
        today, unread, lines = datetime.fromtimestamp(now_s, UTC).date(), 0, b""
        for content in contents:
            try:
                lines += msgspec.json.encode(self._line(content)) + b"\n"
            except (msgspec.MsgspecError, RecursionError, ValueError):  # such as a number that is too large
                unread += 1
        path = self._folder / f"{today.isoformat()}-{os.getpid()}{SUFFIX}"
        self._remove((today - timedelta(self._retention_days)).isoformat())
        if lines:
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            with os.fdopen(file, "wb") as log:
                log.write(lines)
        return unread

    def _line(self, content: Content) -> dict[str, object]:
        prompt = self._redacted(msgspec.json.decode(content.messages)) if content.messages else None
        texts: dict[str, str] = {}
        for event in b"".join(content.events).splitlines():
            for choice in _choices(event):
                name, text = str(choice.index), choice.delta.content if choice.delta else None
                texts[name] = texts.get(name, "") + (text or "")
        return {**content.about, "prompt": prompt, "answers": [self._redacted(text) for text in texts.values()]}

    def _redacted(self, value: Any) -> Any:
        """Return a value with what matches replaced, in all its texts."""
        if isinstance(value, str):
            for pattern in self._patterns:
                value = pattern.sub(REDACTED, value)
            return value
        if isinstance(value, list):
            return [self._redacted(each) for each in value]
        if isinstance(value, dict):
            return {name: self._redacted(each) for name, each in value.items()}
        return value

    def _remove(self, before: str) -> None:
        for path in self._folder.glob(f"*{SUFFIX}"):
            if path.name[:10] < before:
                path.unlink(missing_ok=True)


def _choices(line: bytes) -> list[_Choice]:
    if not line.startswith(b"data:"):
        return []
    try:
        return msgspec.json.decode(line[5:], type=_Event).choices
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return []  # the end, or what no client reads
