"""Keeps prompts and answers of chosen callers in files, for a number of days.

A line of JSON has what a request asked, and what was answered. What is to be written waits in a bounded queue, and a thread
writes it. Where the disk does not accept it, or the queue is full, it is dropped and counted, and no request waits.

There is a file a day for each worker. A file has whole lines alone, whatever happens. A writer has a lock on its file, and what a
full disk leaves of a line is taken off again. The half line of a worker that was killed is taken off when the next one starts.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from re import Pattern
from typing import Any, Final

import msgspec

from gateway import Caller, Exchange, Operation, Plugin, Services, matches, utc
from plugins.text_search import pattern_of, replace

EVERY_S: Final = 1.0

REDACTED: Final = "[redacted]"

SUFFIX: Final = ".jsonl"
BLOCK: Final = 65536


class ContentLog(Plugin):
    """Keeps prompts and answers, with tool calls, in files, one JSON object a line. Put it below `auth`.

    Without `groups`, `accounts` or `tokens` it keeps nothing.
    """

    API = 1
    requires = (Caller,)

    folder: Path
    """The folder of the files, which only this user may read. Each worker writes one file a day (UTC)."""
    groups: tuple[str, ...] = ()
    """Groups whose requests are kept, as names or patterns with `*`."""
    accounts: tuple[str, ...] = ()
    """Accounts whose requests are kept."""
    tokens: tuple[str, ...] = ()
    """Ids of tokens whose requests are kept."""
    redact: tuple[str, ...] = ()
    """Regular expressions; what matches is written as `[redacted]`."""
    retention_days: int = 7
    """How many days a file is kept after its own."""
    max_bytes: int = 65_536
    """Bytes above which a prompt is left out, and an answer that is not streamed; of a stream, after which the rest is."""
    max_waiting: int = 16_777_216
    """Bytes that may wait to be written."""

    def __post_init__(self) -> None:
        if min(self.retention_days, self.max_bytes, self.max_waiting) < 1:
            raise ValueError("retention_days, max_bytes and max_waiting must be 1 or more")

    async def start(self, services: Services) -> None:
        """Make the folder, and begin to write."""
        try:
            patterns = [pattern_of(pattern) for pattern in self.redact]
            self._files = ContentFiles(self.folder, patterns, self.retention_days, self.max_waiting)
            await asyncio.to_thread(self._files.begin)
        except (re.error, OSError) as error:
            raise ValueError(str(error)) from None
        self._log, self._clock = services.log, services.clock
        self._dropped = services.metrics.counter("dropped", "Requests that were not kept: no room, or no disk.", "why")
        services.every(EVERY_S, self._write)

    async def stop(self) -> None:
        """Write what is left."""
        await self._write()

    async def on_request(self, exchange: Exchange) -> None:
        """Take the prompt of a request that is to be kept."""
        caller = exchange[Caller]
        chosen = ((self.groups, caller.group), (self.accounts, caller.account), (self.tokens, caller.token_id))
        if exchange.request.operation is Operation.CHAT and any(matches(patterns, name) for patterns, name in chosen):
            messages = bytes((await exchange.body()).top["messages"])
            exchange[Content] = Content(messages if len(messages) <= self.max_bytes else b"")

    async def explain(self, exchange: Exchange) -> str:
        """Return whether the request would be kept."""
        await self.on_request(exchange)
        return "keeps what is asked and answered" if Content in exchange else "keeps nothing"

    def on_response(self, exchange: Exchange) -> None:
        """Take an answer that is not streamed."""
        if (content := exchange.get(Content)) is not None and exchange.answer is not None:
            content.take_whole(msgspec.json.encode(exchange.answer), self.max_bytes)

    def on_chunk(self, exchange: Exchange, chunk: bytes) -> None:
        """Take the answer, as far as it is kept."""
        if (content := exchange.get(Content)) is not None:
            content.take(chunk, self.max_bytes)

    async def on_end(self, exchange: Exchange) -> None:
        """Put what was taken where it waits to be written."""
        content = exchange.get(Content)
        if content is None:
            return
        content.size += len(content.messages)
        caller, ms = exchange[Caller], round(exchange.arrived_at * 1000)
        content.about = {"id": exchange.id, "at": utc(ms), "account": caller.account, "token_id": caller.token_id}
        content.about |= {"group": caller.group, "model": exchange.model, "channel": exchange.channel}
        content.about |= {"outcome": exchange.outcome, "status": exchange.status}
        if not self._files.add(content):
            self._dropped.add("full")

    async def _write(self) -> None:
        """Write what waits."""
        written = await asyncio.to_thread(self._files.write, self._files.take(), self._clock.time())
        if written.unread:
            self._dropped.add("unreadable", by=written.unread)
        if written.error:
            self._dropped.add("disk", by=written.lost)
            self._log.error("content_not_written", reason=written.error, requests=written.lost)


class Content(msgspec.Struct):
    """What one request asked and was answered. `about`: who asked, and how it ended.

    `events`: of a stream. `whole`: an answer that is not streamed. What was too large is empty.
    """

    messages: bytes = b""
    events: list[bytes] = []
    whole: bytes = b""
    size: int = 0
    about: dict[str, object] = {}

    def take(self, chunk: bytes, most: int) -> None:
        """Take a chunk of a stream, until there are `most` bytes."""
        if self.size < most:
            self.events.append(chunk)
            self.size += len(chunk)

    def take_whole(self, answer: bytes, most: int) -> None:
        """Take an answer that is not streamed, of `most` bytes at most."""
        if len(answer) <= most:
            self.whole, self.size = answer, len(answer)


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None
    input: str | None = None


class _Call(msgspec.Struct):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None
    custom: _Function | None = None


class _Message(msgspec.Struct):
    content: Any = None
    refusal: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[_Call] | None = None
    function_call: _Function | None = None


class _Choice(msgspec.Struct):
    delta: _Message | None = None
    message: _Message | None = None
    index: int = 0
    finish_reason: str | None = None


class _Answer(msgspec.Struct):
    choices: list[_Choice] = []


class Said(msgspec.Struct):
    """What one choice says. `calls`: of tools, by their numbers."""

    content: str = ""
    refusal: str = ""
    reasoning: str = ""
    calls: dict[int, dict[str, str]] = {}
    finish_reason: str = ""


_answer: Final = msgspec.json.Decoder(_Answer)


def line_of(content: Content, patterns: Sequence[Pattern[str]]) -> dict[str, object]:
    """Return a line, with what matches one of `patterns` replaced. Raises `ValueError`, and what msgspec raises.

    `answers` has the text of each choice, and `tool_calls`, `refusals` and `reasoning`, where there are any, what else it says.
    """
    prompt = msgspec.json.decode(content.messages) if content.messages else None
    found = said(content.events, content.whole)
    line: dict[str, object] = {"prompt": prompt, "answers": [each.content for each in found]}
    if any(each.calls for each in found):
        line["tool_calls"] = [list(each.calls.values()) for each in found]
    if any(each.refusal for each in found):
        line["refusals"] = [each.refusal for each in found]
    if any(each.reasoning for each in found):
        line["reasoning"] = [each.reasoning for each in found]
    line["model"] = content.about.get("model", "")  # which may be any text of the caller
    return {**content.about, **{name: _redacted(value, patterns) for name, value in line.items()}}


def said(events: Iterable[bytes], whole: bytes) -> list[Said]:
    """Return what each choice says, of the events of a stream, or of a whole answer where there is one."""
    choices: dict[int, Said] = {}
    for answer in [whole] if whole else b"".join(events).splitlines():
        for choice in _choices(answer if whole else answer.removeprefix(b"data:")):
            texts = choices.setdefault(choice.index, Said())
            texts.finish_reason = choice.finish_reason or texts.finish_reason
            for message in (choice.delta, choice.message):
                if message is not None:
                    _add(texts, message)
    return list(choices.values())


def _choices(text: bytes) -> list[_Choice]:
    try:
        return _answer.decode(text).choices
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return []  # the end, a comment, or what no client reads


def _add(texts: Said, message: _Message) -> None:
    texts.content += _text(message.content)
    texts.refusal += message.refusal or ""
    texts.reasoning += message.reasoning_content or message.reasoning or ""
    for position, call in enumerate(message.tool_calls or ()):
        _add_call(texts, position if call.index is None else call.index, call.function or call.custom, call.id)
    _add_call(texts, 0, message.function_call, None)


def _add_call(texts: Said, number: int, function: _Function | None, id: str | None) -> None:  # noqa: A002
    if function is None:
        return
    call = texts.calls.setdefault(number, {"id": "", "name": "", "arguments": ""})
    call["id"] = call["id"] or id or ""
    call["name"] = call["name"] or function.name or ""
    call["arguments"] += function.arguments or function.input or ""


def _text(content: Any) -> str:
    """Return a text, or those of its parts."""
    if isinstance(content, list):
        return "".join(_text(part.get("text")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def _redacted(value: Any, patterns: Sequence[Pattern[str]]) -> Any:
    """Return a value with what matches replaced, in all its texts and names."""
    if isinstance(value, str):
        return _replaced(value, patterns)
    if isinstance(value, list):
        return [_redacted(each, patterns) for each in value]
    if isinstance(value, dict):
        return {_redacted(name, patterns): _redacted(each, patterns) for name, each in value.items()}
    return value


def _replaced(text: str, patterns: Sequence[Pattern[str]]) -> str:
    """Return a text with what matches replaced, also where the text is JSON that escapes it."""
    pieces = replace(patterns, [REDACTED] * len(patterns), text, urls=False)
    while True:
        try:
            next(pieces)
        except StopIteration as ended:
            return str(ended.value)


class Written(msgspec.Struct, frozen=True):
    """What became of some lines: how many could not be read, how many the disk did not take, and why."""

    unread: int = 0
    lost: int = 0
    error: str = ""


class ContentFiles:
    """The files of one folder. What matches one of `patterns` is written as `[redacted]`. Raises `OSError`."""

    def __init__(self, folder: Path, patterns: Sequence[Pattern[str]], retention_days: int, max_waiting: int) -> None:
        self._folder = folder
        self._patterns = patterns
        self._retention_days = retention_days
        self._max_waiting = max_waiting
        self._waiting: list[Content] = []
        self._bytes = 0

    def begin(self) -> None:
        """Make the folder, and take off the half lines that were left there. Raises `OSError`."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in self._folder.glob(f"*{SUFFIX}"):
            with suppress(OSError):  # it is removed meanwhile, or another worker writes to it
                file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    _take_off_half_a_line(file)
                finally:
                    os.close(file)

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

    def write(self, contents: Iterable[Content], now_s: float) -> Written:
        """Append a line for each, and remove the files that are too old."""
        today, unread, lines = datetime.fromtimestamp(now_s, UTC).date(), 0, []
        for content in contents:
            try:
                lines.append(msgspec.json.encode(line_of(content, self._patterns)) + b"\n")
            except (msgspec.MsgspecError, RecursionError, ValueError):  # such as a number that is too large
                unread += 1
        waiting = lines[::-1]
        try:
            self._remove(today)
            if waiting:
                self._append(self._folder / f"{today.isoformat()}-{os.getpid()}{SUFFIX}", waiting)
        except OSError as failure:
            return Written(unread, len(waiting), str(failure))
        return Written(unread)

    def _append(self, path: Path, lines: list[bytes]) -> None:
        """Append lines to a file, the last first, and take each from the list."""
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            _take_off_half_a_line(file)
            while lines:
                before, at = os.fstat(file).st_size, 0
                try:
                    while at < len(lines[-1]):
                        at += os.write(file, lines[-1][at:])
                except OSError:
                    os.ftruncate(file, before)
                    raise
                lines.pop()
        finally:
            os.close(file)

    def _remove(self, today: date) -> None:
        before = (today - timedelta(self._retention_days)).isoformat()
        for path in self._folder.glob(f"*{SUFFIX}"):
            if path.name[:10] < before:
                path.unlink(missing_ok=True)


def _take_off_half_a_line(file: int) -> None:
    """End a file with its last whole line."""
    size = end = os.fstat(file).st_size
    while end:
        begin = max(0, end - BLOCK)
        block = os.pread(file, end - begin, begin)
        if (last := block.rfind(b"\n")) >= 0:
            end = begin + last + 1
            break
        end = begin
    if end < size:
        os.ftruncate(file, end)
