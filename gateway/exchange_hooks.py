"""What an exchange needs of those that run it, and what stands there where nothing does."""

from __future__ import annotations

from typing import Protocol

from gateway.chat.request import Body


def nothing() -> None:
    """Do nothing."""


async def dropped_body() -> Body:
    """Raise an error: there is no body any more."""
    raise RuntimeError("the body was dropped before it was read")


async def unchecked(_: bytes) -> Body:
    """Raise an error: no body can be changed here."""
    raise RuntimeError("nothing checks a changed body here")


class RunningHooks(Protocol):
    """What runs the request hooks of an exchange."""

    async def before_body(self) -> None:
        """Send the steps that are planned so far, before a body is read that has not arrived or is large."""

    def editor(self) -> str:
        """Return the name of the plugin that changes the request. Raises `GatewayError` for one that may not."""
