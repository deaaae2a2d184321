"""Keeps prompts and answers of chosen callers in files, for a number of days.

What is to be written waits in a bounded queue, and a thread writes it. Where the disk does not accept it, or the queue is full, it
is dropped and counted, and no request waits.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Final

import msgspec

from gateway import Caller, Exchange, Operation, Plugin, Services, matches, utc
from plugins.content_files import ContentFiles
from plugins.content_lines import Content

EVERY_S: Final = 1.0


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
            patterns = [re.compile(pattern) for pattern in self.redact]
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
        content = exchange.get(Content)
        if content is not None and exchange.answer is not None:
            whole = msgspec.json.encode(exchange.answer)
            if len(whole) <= self.max_bytes:
                content.whole, content.size = whole, len(whole)

    def on_chunk(self, exchange: Exchange, chunk: bytes) -> None:
        """Take the answer, as far as it is kept."""
        content = exchange.get(Content)
        if content is not None and content.size < self.max_bytes:
            content.events.append(chunk)
            content.size += len(chunk)

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
