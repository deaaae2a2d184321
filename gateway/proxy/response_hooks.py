"""The plugins that read an answer before anything of it is sent, and may end the exchange with an error in its place."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gateway.errors import Refused
from gateway.exchange import Exchange

NamedResponse = tuple[str, Callable[[Exchange], None]]
"""`on_response`, and the name of its plugin."""


def run_response_hooks(exchange: Exchange, hooks: Sequence[NamedResponse]) -> None:
    """Run `on_response` of the plugins. Raises what one raises, and the error with which one ends the exchange."""
    for name, hook in hooks:
        try:
            hook(exchange)
        except Refused as refused:
            exchange.stop(refused)
        except BaseException:
            exchange.refused_by = name
            raise
        if exchange.stopped is not None:
            exchange.refused_by = name
            raise exchange.stopped
