"""Events that were counted when they arrived, and are not delivered after all, because a plugin ended the stream. Sans-I/O."""

from __future__ import annotations

from gateway.chat import chunks
from gateway.chat.events import EventStream
from gateway.chat.sse import parse_event, whole_events

END = b"."
"""Follows the data, since an event may end with a carriage return."""


def whole_up_to(data: bytes, most: int) -> bytes:
    """Return the whole events that the data begins with, of `most` bytes together."""
    end = 0
    for event in whole_events(data + END):
        if end + len(event) > most:
            break
        end += len(event)
    return data[:end]


def withdraw(stream: EventStream, data: bytes) -> None:
    """Count nothing of the last events that the stream relayed, which are not delivered.

    A usage that was reported with them or after them counts them, and is forgotten.
    """
    output, end = stream.output, 0
    for event in whole_events(data + END):
        end += len(event)
        name, text = parse_event(event)
        if not text:
            continue
        stream.events -= 1
        if text != b"[DONE]":
            chunk = chunks.read(name, text)
            if not (chunk.error or chunk.empty):
                output.withdraw(event)
    if end < len(data):
        stream.events -= 1
        output.withdraw_unread(data[end:])
    if stream.output_at_usage > output.all_events:
        stream.usage.forget_output()
