"""What an answer of a plugin is charged as."""

from __future__ import annotations

import msgspec

from gateway.chat.events import EventStream
from gateway.chat.request import Body
from gateway.chat.usage import Usage
from gateway.exchange import Exchange
from gateway.facts import Route
from gateway.proxy.ending import NO_CEILING


def usage_of(exchange: Exchange, body: Body, events: EventStream, given: Usage | None, *, whole: bool) -> Usage:
    """Return the `given` usage, or what the events report, or an estimate: of an answer that was cut, of what was delivered."""
    if given is None:
        route = exchange.get(Route)
        most = body.max_tokens or (route.candidates[0].max_output_tokens if route and route.candidates else None)
        ceiling = body.n * (most or NO_CEILING)
        return events.usage.usage(lambda: body.prompt_tokens_estimate, lambda: min(events.output.tokens(), ceiling))
    if whole:
        return msgspec.structs.replace(given, source="upstream", answers=1)
    output = min(given.completion_tokens, events.output.tokens())
    return msgspec.structs.replace(given, completion_tokens=output, source="estimated", answers=1)
