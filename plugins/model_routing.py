"""Checks that the caller may use the model, and chooses the channels that serve it, in the order to try them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from hashlib import blake2b

from gateway import (
    AccountBreaker,
    Caller,
    Candidate,
    ChannelBreaker,
    Exchange,
    Plugin,
    Refused,
    Route,
    Services,
    model_not_found,
)


class ModelRouting(Plugin):
    """Checks the model against group, account and token, and orders its channels by priority, then by weighted chance.

    Channels that fail are left out until they recover, and full ones until they have room. One account's failing requests do not
    close a channel for others. Where no other channel can serve, a channel is called until it has failed repeatedly.
    """

    API = 1
    requires = (Caller,)
    provides = (Route,)

    sticky: bool = False
    """Prefer the same channels for all requests of an account, for upstreams that cache prompts; weights still apply."""

    async def start(self, services: Services) -> None:
        """Take the catalogue, and start to follow the health of its channels."""
        self.catalogue = services.catalogue
        self.health = ChannelBreaker(services.store.channels, services.catalogue.channels)
        await self.health.start()

    async def stop(self) -> None:
        """Stop following the channels, and free the slots that this process holds."""
        await self.health.stop()

    async def on_request(self, exchange: Exchange) -> None:
        """Set `Route`. Raises `Refused` for a model that the caller may not use."""
        operation = exchange.request.operation
        if operation.wire is None:
            return
        model = (await exchange.body()).model
        caller = exchange[Caller]
        if not self.catalogue.allows(caller, model):
            raise self._refusal(caller, model)
        draw = partial(_by_account, caller.account) if self.sticky else _by_chance
        tiers = self.catalogue.tiers(model, caller.group, operation)
        if not tiers:
            raise self._elsewhere(caller, model)
        candidates = tuple(candidate for tier in tiers for candidate in shuffled(tier, draw))
        exchange[Route] = Route(candidates, AccountBreaker(self.health, caller.account))

    def _elsewhere(self, caller: Caller, model: str) -> Refused:
        served = " and ".join(f"POST /v1{path}" for path in self.catalogue.paths(model, caller.group))
        text = f"This model is not served on this path. Ask for it by {served}, or choose another model."
        return Refused(404, "model_not_found", text, param="model")

    def _refusal(self, caller: Caller, model: str) -> Refused:
        barrier = self.catalogue.why_not(caller, model)
        if barrier is None or barrier[0] != "token":
            return model_not_found()
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


def shuffled(tier: Sequence[tuple[Candidate, int]], draw: Callable[[Candidate], float]) -> list[Candidate]:
    """Return the candidates in random order, weighted: a draw without replacement (Efraimidis and Spirakis, 2006).

    `draw` returns a number from 0 to 1, uniformly distributed.
    """
    if len(tier) == 1:
        return [tier[0][0]]
    keyed = [(draw(candidate) ** (1 / weight), index) for index, (candidate, weight) in enumerate(tier)]
    return [tier[index][0] for _, index in sorted(keyed, reverse=True)]


def _by_chance(_: Candidate) -> float:
    return random.random()  # noqa: S311 - for spreading load, not for security


def _by_account(account: str, candidate: Candidate) -> float:
    """Return the same number for the same account and channel, whatever other channels exist (rendezvous hashing)."""
    digest = blake2b(f"{account} {candidate.name} {candidate.model}".encode(), digest_size=7).digest()
    return int.from_bytes(digest) / (1 << 56)
