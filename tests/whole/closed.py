"""A plugin that lets no channel be called."""

from collections.abc import Sequence

from gateway import Candidate, Exchange, Plugin, Refused, Route
from gateway.facts import CircuitBreaker


class Shut(CircuitBreaker):
    """None of them, just now."""

    async def admit(self, candidates: Sequence[Candidate], request_id: str) -> Candidate:
        raise Refused(503, "model_unavailable", "No channel can serve this model at the moment. Retry shortly.")


class Closed(Plugin):
    """Puts a gate before the channels that routing chose."""

    requires = (Route,)

    async def on_request(self, exchange: Exchange) -> None:
        exchange[Route] = Route(exchange[Route].candidates, Shut())
