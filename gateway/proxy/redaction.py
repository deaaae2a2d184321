"""The channel's credentials are replaced wherever they occur in the bytes of events, however reads split them.

A credential with characters that are escaped in JSON is recognised, too. One that an upstream changes is not: encoded, in another
case, or split over the texts of two events.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gateway.chat.events import EventStream
from gateway.chat.sse import QUOTE
from gateway.chat.template import ALL
from gateway.proxy import failure
from gateway.proxy.spelling import LONGEST, without

REDACTED: Final = failure.REDACTED.encode()


class Redaction:
    """Replaces the credentials of a channel in one stream of events, which are called secrets here."""

    __slots__ = ("_credentials", "_events", "_secrets", "_tail", "shortest")

    def __init__(self, credentials: Iterable[str], events: EventStream) -> None:
        self._events = events
        self._credentials = tuple(credentials)
        self._secrets = tuple([credential.encode() for credential in self._credentials])
        self._tail = b""
        self.shortest = ALL + 1
        """How many novel bytes of a text may contain a secret. A secret with a quote may begin before the text."""
        for secret in self._secrets:
            self.shortest = min(self.shortest, 0 if QUOTE in secret else len(secret))

    @property
    def held(self) -> int:
        """How many bytes are held back."""
        return len(self._tail)

    def redact_whole(self, whole: bytes) -> bytes:
        """Replace the secrets in `whole`, and hold back an end of it in which one may be split. That end is not counted yet."""
        whole = self._redact(self._take_held() + whole)
        if not self._events.at_boundary:
            # Part of an event that is too long to wait for: a secret may be split here.
            keep = max(1, *(LONGEST * len(secret) - 1 for secret in self._secrets))
            whole, self._tail = whole[:-keep], whole[-keep:]
            self._events.output.add_unread(-len(self._tail))
        return whole

    def redact_rest(self, rest: bytes) -> bytes:
        """Replace the secrets in the rest of the stream, after what was held back."""
        return self._redact(self._take_held() + rest)

    def _take_held(self) -> bytes:
        held, self._tail = self._tail, b""
        if held:
            self._events.output.add_unread(len(held))
        return held

    def _redact(self, data: bytes) -> bytes:
        for secret in self._secrets:
            if data.find(secret) >= 0:  # `in` would raise and drop an exception
                data = data.replace(secret, REDACTED)
                self._events.template.forget()
        if data.find(b"\\") >= 0:
            spelled = without(data, self._credentials, REDACTED)
            if spelled != data:
                self._events.template.forget()
                return spelled
        return data
