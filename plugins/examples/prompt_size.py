"""Limits the size of prompts for each user group. The hook: `on_request`, with the caller and the body."""

from __future__ import annotations

import msgspec

from gateway import Caller, Exchange, Operation, Plugin, Refused


class PromptSize(Plugin):
    """Refuses prompts that are too large for the caller's group. Put it below `auth`."""

    API = 1
    requires = (Caller,)

    tokens: int
    """The most prompt tokens of a request, estimated as one for every four bytes of the body."""
    groups: dict[str, int] = msgspec.field(default_factory=dict)
    """The same for user groups with a limit of their own, by the group's name."""

    def __post_init__(self) -> None:
        if min([self.tokens, *self.groups.values()]) < 1:
            raise ValueError("every limit must be 1 token or more")

    async def on_request(self, exchange: Exchange) -> None:
        """Refuse a prompt that is too large."""
        if exchange.request.operation is not Operation.CHAT:
            return
        most = self.groups.get(exchange[Caller].group, self.tokens)
        size = (await exchange.body()).prompt_tokens_estimate
        if size > most:
            raise Refused(
                413,
                "prompt_too_large",
                f"The prompt has about {size} tokens, and {most} is the most here. Shorten the conversation.",
                param="messages",
            )

    async def explain(self, exchange: Exchange) -> str:
        """Do the same as `on_request`, which takes nothing."""
        await self.on_request(exchange)
        return "the prompt is small enough"
