"""Checks that the caller may use the model, and chooses the channels that serve it, in the order to try them.

A conversation of a model with `affinity` stays with a channel, and with one credential of it, since upstreams keep what they have
computed of a prompt. Nothing is kept for that: rendezvous hashing gives each worker and each machine the same choice. Health and
limits go before it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from hashlib import blake2b

from gateway import (
    AccountBreaker,
    Body,
    Caller,
    Candidate,
    ChannelBreaker,
    Exchange,
    FallbackModel,
    Operation,
    Plan,
    PlanPart,
    Plugin,
    Refused,
    Route,
    RoutingOptions,
    Services,
    drawn,
    model_not_found,
)

FALLS_BACK = (Operation.CHAT, Operation.COMPLETIONS, Operation.MESSAGES, Operation.RESPONSES)
"""The operations of which another model gives an answer of the same kind: not the vectors of another one."""
Draw = Callable[[Candidate], float]
Order = Callable[[Sequence[tuple[Candidate, int]], Draw], list[Candidate]]
EXPLORES = 0.1
"""The part of the requests that go to any channel of a model with `order: latency`, so that each is known."""
PROMPT = ("tools", "system", "instructions", "messages", "input", "prompt")
"""The fields of a prompt, in the order in which upstreams read them."""


class ModelRouting(Plugin):
    """Checks the model against group, account and token, and orders its channels by priority, then by weighted chance.

    Channels that fail are left out until they recover, and full ones until they have room. One account's failing requests do not
    close a channel for others. Where no other channel can serve, a channel is called until it has failed repeatedly.
    """

    API = 1
    requires = (Caller,)
    provides = (Route,)

    async def start(self, services: Services) -> None:
        """Take the catalogue, and start to follow the health of its channels."""
        self.catalogue = services.catalogue
        self.options = services.catalogue.routing
        self.health = ChannelBreaker(services.store.channels, services.catalogue.channels)
        self.health.follows_latency = any(options.by_latency for options in self.options.values())
        await self.health.start()

    async def stop(self) -> None:
        """Stop following the channels, and free the slots that this process holds."""
        await self.health.stop()

    async def on_request(self, exchange: Exchange) -> None:
        """Set `Route`. Raises `Refused` for a model that the caller may not use."""
        operation = exchange.request.operation
        if operation.wire is None:
            return
        body = await exchange.body()
        RoutePart(self, exchange[Caller], body.model, operation).fill(exchange, body)

    def prepare(self, plan: Plan) -> PlanPart:
        """Return the part that routes the requests of one caller for one model."""
        return RoutePart(self, plan[Caller], plan.model, plan.operation)

    def ordering(self, options: RoutingOptions | None) -> Order:
        """Return how the candidates of one priority are ordered."""
        if options is not None and options.by_latency:
            return self._by_latency
        return shuffled if options is not None and options.affinity else self._by_load

    def _by_load(self, tier: Sequence[tuple[Candidate, int]], draw: Draw) -> list[Candidate]:
        """Return the candidates in random order, weighted; with equal weights the ones with fewer calls in flight first."""
        order = shuffled(tier, draw)
        if len(order) > 1 and all(weight == tier[0][1] for _, weight in tier):
            order.sort(key=self.health.in_flight)
        return order

    def _by_latency(self, tier: Sequence[tuple[Candidate, int]], draw: Draw) -> list[Candidate]:
        """Return first those of which nothing is known, then those that begin their answers soonest; every tenth time by chance."""
        order = shuffled(tier, _by_chance)
        if random.random() >= EXPLORES:  # noqa: S311 - for spreading load, not for security
            order.sort(key=lambda candidate: self.health.latency_ms.get(candidate.name, -1))
        return order

    def fallbacks(self, names: Sequence[str], exchange: Exchange, body: Body, draw: Draw) -> tuple[FallbackModel, ...]:
        """Return the models to which the request may fall back: open to the caller, and able to do what it asks for."""
        caller, operation = exchange[Caller], exchange.request.operation
        if operation not in FALLS_BACK:
            return ()
        found: list[FallbackModel] = []
        for name in names:
            tiers = self.catalogue.tiers(name, caller.group, operation) if self.catalogue.allows(caller, name) else ()
            if tiers and self.catalogue.can_serve(name, body):
                order = self.ordering(self.options.get(name))
                candidates = tuple(candidate for tier in tiers for candidate in order(tier, draw))
                found.append(FallbackModel(name, candidates, self.catalogue.is_longer(name, body.model)))
        return tuple(found)

    def elsewhere(self, caller: Caller, model: str) -> Refused:
        """Return the error for a model that is served on other paths."""
        served = " and ".join(f"POST /v1{path}" for path in self.catalogue.paths(model, caller.group))
        text = f"This model is not served on this path. Ask for it by {served}, or choose another model."
        return Refused(404, "model_not_found", text, param="model")

    def refusal(self, caller: Caller, model: str) -> Refused:
        """Return the error for a model that the caller may not use."""
        barrier = self.catalogue.why_not(caller, model)
        if barrier is None or barrier[0] != "token":
            return model_not_found(model)
        return Refused(
            403,
            "token_restricted",
            "This token may not use this model. Use another token of the account, or one of the models in GET /v1/models.",
            param="model",
        )

    async def explain(self, exchange: Exchange) -> str:
        """Do the same as `on_request`, which takes nothing, and name the channels that the group may not use.

        A refusal says in the operator's words why, after what the caller reads.
        """
        try:
            await self.on_request(exchange)
        except Refused as refused:
            if barrier := self.catalogue.why_not(exchange[Caller], exchange.model):
                message = f"{refused.message} The reason: {barrier[1]}."
                raise Refused(refused.status, refused.code, message, param=refused.param) from None
            raise
        model = self.catalogue.models[exchange.model]
        open_to_group = {candidate.name for candidate in exchange[Route].candidates}
        closed = [serving.use for serving in model.servings if serving.use not in open_to_group]
        text = f"{exchange.model} is open to the account, its group and this token"
        return f"{text}; not open to the group: channel {', '.join(closed)}" if closed else text


class RoutePart(PlanPart):
    """Routes the requests of one caller for one model. Raises `Refused` for a model that the caller may not use."""

    def __init__(self, routing: ModelRouting, caller: Caller, model: str, operation: Operation) -> None:
        if not routing.catalogue.allows(caller, model):
            raise routing.refusal(caller, model)
        self._routing = routing
        self._account = caller.account
        self._options = options = routing.options.get(model)
        self._order = routing.ordering(options)
        self._tiers = routing.catalogue.tiers(model, caller.group, operation)
        if not self._tiers:
            raise routing.elsewhere(caller, model)
        only_one = options is None and all(len(tier) == 1 for tier in self._tiers)
        self._only = tuple(tier[0][0] for tier in self._tiers) if only_one else None

    def fill(self, exchange: Exchange, body: Body) -> tuple[()]:
        routing, options, session, candidates = self._routing, self._options, "", self._only
        draw: Draw = _by_chance
        fallbacks: tuple[FallbackModel, ...] = ()
        if options is not None:
            session = session_of(options.affinity, exchange, body, self._account)
            draw = BySession(session) if session else draw
            fallbacks = routing.fallbacks(options.fallback, exchange, body, draw)
        if candidates is None:
            candidates = self._drawn(draw)
        exchange.facts[Route] = Route(candidates, AccountBreaker(routing.health, self._account), session, fallbacks)
        return ()

    def _drawn(self, draw: Draw) -> tuple[Candidate, ...]:
        return tuple([candidate for tier in self._tiers for candidate in self._order(tier, draw)])


def shuffled(tier: Sequence[tuple[Candidate, int]], draw: Draw) -> list[Candidate]:
    """Return the candidates in random order, weighted: a draw without replacement (Efraimidis and Spirakis, 2006).

    `draw` returns a number from 0 to 1, uniformly distributed.
    """
    if len(tier) == 1:
        return [tier[0][0]]
    keyed = [(draw(candidate) ** (1 / weight), index) for index, (candidate, weight) in enumerate(tier)]
    return [tier[index][0] for _, index in sorted(keyed, reverse=True)]


def _by_chance(_: Candidate) -> float:
    return random.random()  # noqa: S311 - for spreading load, not for security


class BySession:
    """The draw of one conversation: the same for the same channel in each worker and on each machine."""

    def __init__(self, session: str) -> None:
        self._session = session

    def __call__(self, candidate: Candidate) -> float:
        """Return a number from 0 to 1."""
        return drawn(self._session, f"{candidate.name} {candidate.model}")


def session_of(affinity: Sequence[str], exchange: Exchange, body: Body, account: str) -> str:
    """Return a digest of the first that a request has of what its conversation is known by; empty where it has none.

    The account is a part of it, so that no caller can choose the channel of another.
    """
    for key in affinity:
        kind, _, name = key.partition(":")
        if key == "account":
            value = b"account"
        elif kind == "header":
            value = exchange.request.headers.get(name, "").encode("utf-8", "surrogateescape")
        elif kind == "prefix":
            value = _prefix(body, int(name))
        else:
            value = bytes(body.top.get(key, b"null"))
            value = b"" if value in (b"null", b'""') else value
        if value:
            return blake2b(b"\0".join((account.encode(), key.encode(), value)), digest_size=16).hexdigest()
    return ""


def _prefix(body: Body, size: int) -> bytes:
    """Return so many bytes of the beginning of the prompt, which upstreams keep; none of a shorter one."""
    prompt = b""
    for name in PROMPT:
        if name in body.top:
            prompt += bytes(memoryview(body.top[name])[: size - len(prompt)])
    return prompt if len(prompt) == size else b""
