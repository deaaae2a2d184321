"""A plugin whose circuit breaker is open for every channel."""

from collections.abc import Sequence

from gateway import Candidate, Exchange, Plugin, Refused, Route
from gateway.domain.facts import CircuitBreaker


class Shut(CircuitBreaker):
    """A circuit breaker that admits no candidate."""

    async def admit(self, candidates: Sequence[Candidate], request_id: str) -> Candidate:
        raise Refused(503, "model_unavailable", "No channel can serve this model at the moment. Retry shortly.")


class Closed(Plugin):
    """A plugin that puts the circuit breaker `Shut` before the channels that routing chose."""

    requires = (Route,)

    async def on_request(self, exchange: Exchange) -> None:
        exchange[Route] = Route(exchange[Route].candidates, Shut())
