"""The chain run dry: what would become of a request, told by the plugins themselves. Nothing is sent, held or counted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from multidict import CIMultiDict

from gateway.chain import Chain, Step
from gateway.chat.request import Body, BodyRules, check
from gateway.errors import GatewayError, Refused, as_refused
from gateway.exchange import Exchange, Operation, Request
from gateway.facts import Route
from gateway.proxy.failover import MAX_ATTEMPTS


class Refusal(msgspec.Struct, frozen=True):
    """What the caller would be told. `by` is a plugin, or empty where it is the core."""

    by: str
    status: int
    code: str
    message: str


class Decision(msgspec.Struct, frozen=True):
    """What one plugin says. `unknown`: it does not explain itself, or what it needs is not there."""

    plugin: str
    verdict: Literal["passes", "refuses", "unknown"]
    text: str


class Turn(msgspec.Struct, frozen=True):
    """One channel in the order of this draw; a request draws anew. `spare`: called where the `first` and those after fail."""

    channel: str
    model: str
    verdict: Literal["first", "spare", "left out"]
    text: str = ""


class Explanation(msgspec.Struct):
    """`served`: None where the plugins do not tell. `refusal`: the first that the request meets.

    `price`: as the plugin that charges tells it.
    """

    served: bool | None = None
    plugins: list[Decision] = []
    channels: list[Turn] = []
    price: dict[str, Any] = {}
    refusal: Refusal | None = None


async def explain(
    chain: Chain, headers: Sequence[tuple[str, str]], body: bytes, rules: BodyRules, peer: str
) -> Explanation:
    """What a started chain would do with a chat completion. Raises `StoreAway`."""

    async def read() -> Body:
        return check(body, rules)

    request = Request("POST", "/v1/chat/completions", CIMultiDict(headers), peer, Operation.CHAT)
    exchange = Exchange(request, read, generation=chain.generation)
    told = Explanation()
    for step in chain.steps:
        try:
            told.plugins.append(await _asked(step, exchange))
        except Exception as error:
            if isinstance(error, GatewayError) and not isinstance(error, Refused):
                raise
            refused = as_refused(error)
            message = refused.message or f"the plugin fails with {type(error).__name__}: {error}"
            told.plugins.append(Decision(step.name, "refuses", f"{refused.status} {refused.code}: {message}"))
            told.refusal = told.refusal or Refusal(step.name, refused.status, refused.code, message)
    told.price = exchange.price
    if (route := exchange.get(Route)) is not None:
        told.channels = await _turns(route)
        told.served = any(turn.verdict == "first" for turn in told.channels)
        if not told.served and told.refusal is None:
            told.refusal = Refusal("", 503, "model_unavailable", "No channel can serve this model at the moment.")
    if told.refusal is not None:
        told.served = False
    return told


async def _asked(step: Step, exchange: Exchange) -> Decision:
    if missing := [fact.__name__ for fact in step.plugin.requires if fact not in exchange]:
        return Decision(step.name, "unknown", f"needs {', '.join(missing)}, which nothing above it provided")
    if not step.defines("on_request"):
        return Decision(step.name, "passes", "has no part in the decision")
    try:
        text = await step.plugin.explain(exchange)
    except Exception as error:
        if step.on_error == "refuse" or isinstance(error, GatewayError):
            raise
        return Decision(step.name, "passes", f"fails with {type(error).__name__}, which is ignored")
    if text is None:
        return Decision(step.name, "unknown", "does not explain itself: it has no `explain`")
    return Decision(step.name, "passes", text)


async def _turns(route: Route) -> list[Turn]:
    """As the pipe takes them: those that may be called, in order, no channel twice."""
    turns: list[Turn] = []
    free: set[str] = set()
    for candidate in route.candidates:
        why_not = await route.breaker.why_not(candidate)
        if not why_not and (candidate.name in free or len(free) == MAX_ATTEMPTS):
            why_not = "stands above already" if candidate.name in free else f"{MAX_ATTEMPTS} others come before it"
        verdict: Literal["first", "spare", "left out"] = "left out" if why_not else "spare" if free else "first"
        turns.append(Turn(candidate.name, candidate.model, verdict, why_not))
        if not why_not:
            free.add(candidate.name)
    return turns
