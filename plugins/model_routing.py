"""Chooses who serves: which models the caller may use, and the channels of the chosen one in the order to try them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from hashlib import blake2b

from gateway import (
    Caller,
    Candidate,
    ChannelHealth,
    Exchange,
    Operation,
    Plugin,
    Refused,
    Route,
    Services,
    matches,
    model_not_found,
)


class ModelRouting(Plugin):
    """Checks the model against group, account and token, and lists its channels by priority, then by weighted chance.

    Channels that fail are left out until they serve again, and full ones until there is room.
    """

    requires = (Caller,)
    provides = (Route,)

    sticky: bool = False
    """Prefer the same channels for all requests of an account, for upstreams that remember prompts; weights still hold."""

    async def start(self, services: Services) -> None:
        """Take the catalogue, and begin to learn how its channels are."""
        self.catalogue = services.catalogue
        self.health = ChannelHealth(services.store.channels, services.catalogue.channels)
        await self.health.start()

    async def stop(self) -> None:
        """Give back what is held of the channels."""
        await self.health.stop()

    async def on_request(self, exchange: Exchange) -> None:
        """Refuse a model that the caller may not use, or list who serves it."""
        if exchange.request.operation is not Operation.CHAT:
            return
        model = (await exchange.body()).model
        caller = exchange[Caller]
        if not self.catalogue.allows(caller, model):
            raise model_not_found()
        if caller.token_models is not None and not matches(caller.token_models, model):
            raise Refused(
                403,
                "token_restricted",
                "This token may not use this model. Use another token of the account, or one of the models in GET /v1/models.",
                param="model",
            )
        draw = partial(_of_account, caller.account) if self.sticky else _by_chance
        tiers = self.catalogue.tiers(model, caller.group)
        exchange[Route] = Route(tuple(candidate for tier in tiers for candidate in shuffled(tier, draw)), self.health)

    async def explain(self, exchange: Exchange) -> str:
        """Nothing is taken by choosing; whether a channel may be called is asked later."""
        await self.on_request(exchange)
        model = self.catalogue.models[exchange.model]
        open_to_group = {candidate.name for candidate in exchange[Route].candidates}
        closed = [serving.use for serving in model.servings if serving.use not in open_to_group]
        text = f"{exchange.model} is open to the account, its group and this token"
        return f"{text}; not open to the group: channel {', '.join(closed)}" if closed else text


def shuffled(tier: Sequence[tuple[Candidate, int]], draw: Callable[[Candidate], float]) -> list[Candidate]:
    """A draw without replacement by weight (Efraimidis and Spirakis, 2006). `draw` gives numbers from 0 to 1, evenly."""
    if len(tier) == 1:
        return [tier[0][0]]
    keyed = [(draw(candidate) ** (1 / weight), index) for index, (candidate, weight) in enumerate(tier)]
    return [tier[index][0] for _, index in sorted(keyed, reverse=True)]


def _by_chance(_: Candidate) -> float:
    return random.random()  # noqa: S311 - spreads load, guards nothing


def _of_account(account: str, candidate: Candidate) -> float:
    """The same for the same account and channel, whatever other channels there are (rendezvous hashing)."""
    digest = blake2b(f"{account} {candidate.name} {candidate.model}".encode(), digest_size=7).digest()
    return int.from_bytes(digest) / (1 << 56)
