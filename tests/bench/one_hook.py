"""Plugins with one hook each, which does nothing, for measuring what a hook costs. A gateway finds this file beside its own."""

from __future__ import annotations

from gateway import Declared, Delta, Exchange, Plan, PlanPart, Plugin, Script, Services, Step

LOOK = Script("look", "return 1")


class Nothing(Plugin):
    """A plugin without a hook of a request."""

    API = 1


class OnRequest(Nothing):
    """A plugin that is called before the upstream."""

    async def on_request(self, exchange: Exchange) -> None: ...


class RequestStep(Nothing):
    """A plugin whose step is sent with those of the others."""

    async def start(self, services: Services) -> None:
        self._keys = [services.key("{bench}")]

    async def request_step(self, exchange: Exchange) -> Step:
        return Step(LOOK, self._keys)


class Prepare(Nothing):
    """The same plugin, whose step is kept for all requests of a caller and a model."""

    async def start(self, services: Services) -> None:
        self._part = LookPart()
        self._part.request = Declared(LOOK, [services.key("{bench}")])

    def prepare(self, plan: Plan) -> PlanPart:
        return self._part


class LookPart(PlanPart):
    """A part with a step that has no holes."""


class OnResponse(Nothing):
    """A plugin that is called when the answer begins."""

    def on_response(self, exchange: Exchange) -> None: ...


class OnChunk(Nothing):
    """A plugin that is called for each read of events."""

    def on_chunk(self, exchange: Exchange, chunk: bytes) -> None: ...


class OnDelta(Nothing):
    """A plugin that is called for each piece of text."""

    def on_delta(self, exchange: Exchange, delta: Delta, last: bool) -> None: ...


class OnEnd(Nothing):
    """A plugin that is called at the end."""

    async def on_end(self, exchange: Exchange) -> None: ...


class OnFailover(Nothing):
    """A plugin that is called before a further attempt, which none of the measured requests has."""

    async def on_failover(self, exchange: Exchange) -> None: ...


class Counts(Nothing):
    """A plugin that counts in a metric of its own at the end."""

    async def start(self, services: Services) -> None:
        self._seen = services.metrics.counter("seen", "Requests seen.", "model")

    async def on_end(self, exchange: Exchange) -> None:
        self._seen.add(exchange.model)
