"""The contract between the core and a plugin.

Promises of the core:

1. **Before the first byte and after the last, a plugin may wait; in between, it may only look.**
2. Hooks run in the order of the YAML list on the way in, and in reverse on the way out.
3. `on_end` comes exactly once for each plugin whose `on_request` was entered, whatever happened: refused further down,
   caller gone, upstream failed, plugin crashed. What `on_request` took, `on_end` gives back.
4. The caller leaving stops the copying of bytes; it never cancels a plugin.
5. An exchange stays with the chain it began with, also across a reload.
6. A hook that a plugin does not define costs nothing.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from gateway.exchange import Exchange, Reply
from gateway.services import Services


class Plugin(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, dict=True, eq=False):
    """What a plugin derives from. Annotated fields are its settings: what an operator may write under `with:`.

    `provides` and `requires` are facts: types that `on_request` puts into the exchange, or needs to find there.
    `sees_misdirected`: whether the plugin is also told of requests that the path table refuses.
    """

    provides: ClassVar[tuple[type, ...]] = ()
    requires: ClassVar[tuple[type, ...]] = ()
    sees_misdirected: ClassVar[bool] = False

    async def start(self, services: Services) -> None:
        """Once, before the first exchange. Raise `ValueError` with a cure to stop the start."""

    async def stop(self) -> None:
        """Once, after the last exchange that began with this instance."""

    async def on_request(self, exchange: Exchange) -> Reply | None:
        """In the order of the list. Raise `Refused` to say no; return a `Reply` to answer in the upstream's place."""

    async def explain(self, exchange: Exchange) -> str | None:
        """What `on_request` would do, in words, for `gateway explain`: it takes, counts and writes nothing.

        Raise `Refused` as `on_request` would, and provide what it provides. None where that cannot be told.
        """

    def on_response(self, exchange: Exchange) -> None:
        """The upstream's status and headers are in and nothing was sent yet: the last moment for `response_headers`."""

    def on_chunk(self, exchange: Exchange, chunk: bytes) -> None:
        """Whole events, after they were written to the caller. They cannot be changed here."""

    async def on_end(self, exchange: Exchange) -> None:
        """In reverse order, once, whatever happened. Give back what `on_request` took."""
