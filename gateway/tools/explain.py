"""A dry run of the chain: each plugin explains what it would do with a request. Nothing is sent, held or counted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from multidict import CIMultiDict

from gateway.catalogue import MAX_ATTEMPTS
from gateway.chain.chain import Chain
from gateway.chain.entry import Entry
from gateway.chain.failures import error_text, is_cancellation
from gateway.chat.request import Body, BodyRules, check
from gateway.chat.usage import Usage
from gateway.errors import GatewayError, Refused, as_refused
from gateway.exchange import Exchange, Operation, Request
from gateway.facts import Route


class Refusal(msgspec.Struct, frozen=True):
    """The error that the caller would get. `by` is the plugin that refuses, or empty for the core."""

    by: str
    status: int
    code: str
    message: str


class Decision(msgspec.Struct, frozen=True):
    """The decision of one plugin. `unknown`: it has no `explain`, or a fact that it requires is missing."""

    plugin: str
    verdict: Literal["passes", "refuses", "unknown"]
    text: str


class ChannelChoice(msgspec.Struct, frozen=True):
    """One channel. The order is drawn anew for each request. `spare`: called if the channels before it fail.

    `cost`: what it bills, as far as that is known, for a prompt of the estimated length. `request`: what is special about its
    requests, without secrets.
    """

    channel: str
    model: str
    verdict: Literal["first", "spare", "left out"]
    text: str = ""
    cost: dict[str, Any] = {}
    request: str = ""


class Explanation(msgspec.Struct):
    """The decisions of the chain on one request.

    `served`: None if it cannot be known, because no plugin that explains itself chose a channel. `refusal`: the first one.
    `price`: as the plugin that charges gives it.
    """

    served: bool | None = None
    plugins: list[Decision] = []
    channels: list[ChannelChoice] = []
    price: dict[str, Any] = {}
    refusal: Refusal | None = None


async def explain(
    chain: Chain, headers: Sequence[tuple[str, str]], body: bytes, rules: BodyRules, peer: str
) -> Explanation:
    """Return what a started chain would do with a chat completion. Raises `StoreAway`."""

    async def read() -> Body:
        return check(body, rules)

    request = Request("POST", "/v1/chat/completions", CIMultiDict(headers), peer, Operation.CHAT)
    exchange = Exchange(request, read, generation=chain.generation)
    explanation = Explanation()
    for entry in chain.entries:
        try:
            explanation.plugins.append(await _decision(entry, exchange))
        except BaseException as error:
            if is_cancellation(error) or (isinstance(error, GatewayError) and not isinstance(error, Refused)):
                raise
            refused = as_refused(error)
            message = refused.message or f"the plugin fails with {error_text(error)}"
            explanation.plugins.append(Decision(entry.name, "refuses", f"{refused.status} {refused.code}: {message}"))
            explanation.refusal = explanation.refusal or Refusal(entry.name, refused.status, refused.code, message)
    explanation.price = exchange.price
    if (route := exchange.get(Route)) is not None:
        asked = Usage((await exchange.body()).prompt_tokens_estimate, 0, "estimated", answers=1)
        explanation.channels = await _choices(route, asked)
        explanation.served = any(choice.verdict == "first" for choice in explanation.channels)
        if not explanation.served and explanation.refusal is None:
            explanation.refusal = Refusal(
                "", 503, "model_unavailable", "No channel can serve this model at the moment."
            )
    if explanation.refusal is not None:
        explanation.served = False
    return explanation


async def _decision(entry: Entry, exchange: Exchange) -> Decision:
    if missing := [fact.__name__ for fact in entry.plugin.requires if fact not in exchange]:
        return Decision(entry.name, "unknown", f"needs {', '.join(missing)}, which nothing above it provided")
    if not entry.defines("on_request", "request_step"):
        return Decision(entry.name, "passes", "has no part in the decision")
    try:
        text = await entry.plugin.explain(exchange)
    except BaseException as error:
        if is_cancellation(error) or entry.on_error == "refuse" or isinstance(error, GatewayError):
            raise
        return Decision(entry.name, "passes", f"fails with {type(error).__name__}, which is ignored")
    if text is None:
        return Decision(entry.name, "unknown", "does not explain itself: it has no `explain`")
    return Decision(entry.name, "passes", text)


async def _choices(route: Route, asked: Usage) -> list[ChannelChoice]:
    """Return the channels in the order in which failover tries them: no channel twice, and only available ones."""
    choices: list[ChannelChoice] = []
    available: set[str] = set()
    for candidate in route.candidates:
        why_not = await route.breaker.why_not(candidate)
        if not why_not and (candidate.name in available or len(available) == MAX_ATTEMPTS):
            why_not = (
                "is listed above already"
                if candidate.name in available
                else f"{MAX_ATTEMPTS} others are tried before it"
            )
        verdict: Literal["first", "spare", "left out"] = "left out" if why_not else "spare" if available else "first"
        cost = {} if candidate.cost is None else candidate.cost.record(asked)
        request = candidate.channel.request_in_words
        choices.append(ChannelChoice(candidate.name, candidate.model, verdict, why_not, cost, request))
        if not why_not:
            available.add(candidate.name)
    return choices if available else await _last_resorts(route, choices)


async def _last_resorts(route: Route, choices: list[ChannelChoice]) -> list[ChannelChoice]:
    """Return the choices, none of which is available, with the channels that are called for want of another."""
    verdict: Literal["first", "spare"] = "first"
    for index, candidate in enumerate(route.candidates):
        if not await route.breaker.why_not_alone(candidate):
            text = f"called although it is {choices[index].text}: no other can serve"
            choices[index] = msgspec.structs.replace(choices[index], verdict=verdict, text=text)
            verdict = "spare"
    return choices
