"""How the events of an answer are read, by what the caller asked for and what the channel says of its upstream."""

from __future__ import annotations

from gateway.chat.events import EventStream
from gateway.chat.request import Body
from gateway.chat.withheld import WatchedEvents
from gateway.config.channel import Channel


def events_of(body: Body, channel: Channel, *, gathered: bool, watched: bool) -> EventStream:
    """Return the parser of an answer's events. Of one that is gathered nothing is dropped, and no event is too long to wait for.

    `watched`: plugins may withdraw events.
    """
    if gathered:
        return EventStream(drop_usage=False, choices=body.n, max_event_bytes=channel.max_response_bytes)
    drop_empty = channel.empty_choices == "drop"
    # The usage of another dialect is always a chunk of its own.
    drop_usage = not body.asked_usage and (channel.ask_usage or drop_empty or channel.dialect is not None)
    kind = WatchedEvents if watched else EventStream
    return kind(drop_usage=drop_usage, drop_empty=drop_empty, choices=body.n)
