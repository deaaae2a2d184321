"""What a relay writes to where the upstream streams and the caller did not ask for it: the events are gathered to one answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gateway.chat.gathered import GatheredCompletion
from gateway.chat.sse import parse_event, whole_events
from gateway.proxy.caller import CallerConnection


class Gathering:
    """What a relay writes to in place of the caller's connection. It reads nothing slowly, and has nothing unsent."""

    chunked = False
    unsent = 0
    on_flow: Callable[[bool], None] | None = None

    def __init__(self, caller: CallerConnection) -> None:
        self._caller = caller
        self.completion = GatheredCompletion()
        self.invalid = False
        """An event was no chunk."""
        self._ended = False
        self.on_invalid: Callable[[], None] | None = None

    @property
    def on_gone(self) -> Callable[[], None] | None:
        """Called when the caller leaves. Without it, `on_invalid` is forgotten, too: it refers to the relay."""
        return self._caller.on_gone

    @on_gone.setter
    def on_gone(self, called: Callable[[], None] | None) -> None:
        self._caller.on_gone = called
        if called is None:
            self.on_invalid = None

    def stream_head(self, headers: Mapping[str, str]) -> bytes:
        """Return no head: none is written."""
        return b""

    def begin(self, head: bytes, first: bytes) -> None:
        """Take the first events."""
        self.write(first)

    def write(self, data: bytes) -> None:
        """Take whole events."""
        for event in whole_events(data + b"\n\n"):  # the end of an event that ends with \r is seen with what follows
            text = parse_event(event)[1]
            self._ended |= text == b"[DONE]"  # readers of a stream stop here
            if text and not self._ended and not self.invalid:
                try:
                    self.completion.add(text)
                except ValueError:
                    self.invalid = True
                    if self.on_invalid is not None:
                        self.on_invalid()
