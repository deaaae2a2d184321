"""Chooses who serves: which models the caller may use, and the channels of the chosen one in the order to try them."""

from __future__ import annotations

import random
from collections.abc import Sequence

from gateway import Caller, Candidate, Exchange, Operation, Plugin, Refused, Route, Services
from gateway.answers import model_not_found
from gateway.catalogue import matches


class ModelRouting(Plugin):
    """Checks the model against group, account and token, and lists its channels by priority, then by weighted chance."""

    requires = (Caller,)
    provides = (Route,)

    async def start(self, services: Services) -> None:
        self.catalogue = services.catalogue
        self.random = random.Random()  # noqa: S311 - spreads load, guards nothing

    async def on_request(self, exchange: Exchange) -> None:
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
        tiers = self.catalogue.tiers(model)
        exchange[Route] = Route(tuple(candidate for tier in tiers for candidate in self._shuffled(tier)))

    def _shuffled(self, tier: Sequence[tuple[Candidate, int]]) -> list[Candidate]:
        """A draw without replacement by weight (Efraimidis and Spirakis, 2006)."""
        if len(tier) == 1:
            return [tier[0][0]]
        keyed = [(self.random.random() ** (1 / weight), index) for index, (_, weight) in enumerate(tier)]
        return [tier[index][0] for _, index in sorted(keyed, reverse=True)]
