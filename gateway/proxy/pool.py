"""The pool of connections to upstreams, which is aiohttp's, and the prebuilt head of each channel's requests."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Final
from weakref import WeakSet

from aiohttp import ClientRequest, ClientTimeout, TCPConnector, encode_basic_auth
from yarl import URL

from gateway.chat.dialect import Dialect
from gateway.chat.request import BodyPart
from gateway.config.channel import Channel
from gateway.proxy.credentials import Credentials
from gateway.proxy.request_head import address_of, heads
from gateway.proxy.turns import Turns
from gateway.proxy.upstream import UpstreamConnection
from gateway.store.credential_states import CredentialStates

AIOHTTP_ATTRIBUTES: Final = ("_buffer",)
"""Of `aiohttp.client_proto.ResponseHandler`, as read in 3.14.5: the responses that it has parsed."""
AIOHTTP_CONNECTOR: Final = ("_get",)
"""Of `aiohttp.TCPConnector`: returns an idle connection or None. It waits for nothing, so that it needs no timeout."""
_NEVER_FILLED: Final = deque[Any]()
"""For all connections: aiohttp's protocol parses nothing here, and an empty deque takes 760 bytes."""


class UpstreamPool:
    """The targets of all channels, each with connections of its own.

    A channel whose settings or certificates change has another target, so no connection, credential or authority of the one
    before is used for it. A target is closed once no exchange of a generation that used it is left.
    """

    def __init__(self, credentials: CredentialStates | None = None) -> None:
        self._credentials = credentials or CredentialStates()
        self._targets: dict[object, Target] = {}
        self._turns = Turns()

    def target(self, channel: Channel, generation: int = 1, dialect: Dialect | None = None) -> Target:
        """Return where a channel's requests go, for an exchange of this generation. It is built once for each channel.

        A dialect is of one generation, and so is the target of a channel that has one.
        """
        key: object = channel.identity if dialect is None else (channel.identity, dialect)
        target = self._targets.get(key)
        if target is None:
            target = self._targets[key] = Target(channel, self._turns, self._credentials, dialect)
        target.generations.add(generation)
        return target

    async def retire(self, generation: int, channels: Iterable[Channel]) -> None:
        """Close the targets that only this generation used, except those of `channels`. No exchange of it may be left."""
        kept = {channel.identity for channel in channels}
        for identity, target in list(self._targets.items()):
            target.generations.discard(generation)
            if not target.generations and identity not in kept:
                del self._targets[identity]
                await target.close()

    async def close(self) -> None:
        """Close all connections."""
        while self._targets:
            await self._targets.popitem()[1].close()


class Target:
    """One channel's address, its credentials and connections, and the head that every request to it begins with.

    A proxy is used only where the channel names one; the environment's is ignored. A channel with a `ca_file` trusts the
    authorities in that file and no others.
    """

    def __init__(
        self, channel: Channel, turns: Turns, credentials: CredentialStates, dialect: Dialect | None = None
    ) -> None:
        url = address_of(channel, dialect)
        proxy = URL(channel.proxy) if channel.proxy else None
        login = encode_basic_auth(proxy.user, proxy.password or "") if proxy is not None and proxy.user else ""
        self.credentials = Credentials(channel.credentials, credentials)
        self._turns = turns
        self.generations: set[int] = set()
        """The generations of the configuration whose exchanges may use it."""
        self._connector = TCPConnector(limit=0, ttl_dns_cache=300, keepalive_timeout=4)
        self._used: WeakSet[object] = WeakSet()
        port = "" if url.is_default_port() else f":{url.port}"
        host = f"[{url.host}]" if url.host and ":" in url.host else url.host
        self.request = ClientRequest(
            "POST",
            url,
            loop=asyncio.get_running_loop(),
            ssl=channel.trust.context if channel.trust else True,
            proxy=proxy.with_user(None) if proxy is not None else None,
            proxy_headers={"Host": f"{host}{port}", "Proxy-Authorization": login} if login else None,
        )
        self._key = self.request.connection_key
        self.timeout = ClientTimeout(total=None, connect=channel.timers.connect)
        # Only a tunnel, which is for https, hides the request from the proxy.
        forwarded = proxy is not None and url.scheme == "http"
        target = str(url) if forwarded else url.raw_path
        self._heads = heads(channel, dialect, target, f"{host}{port}", login if forwarded else "")

    async def idle(self) -> UpstreamConnection | None:
        """Return a connection that was used before, if there is one now."""
        if self.request.proxy is not None:
            return None
        while (connection := await self._connector._get(self._key, [])) is not None:
            transport = connection.transport
            if transport is not None and not transport.is_closing():
                return UpstreamConnection(connection, self._turns)
            connection.close()
        return None

    async def open(self, *, fresh: bool) -> tuple[UpstreamConnection, bool]:
        """Return a connection, and whether it was used before. A `fresh` one was not.

        Raises aiohttp's client errors and `OSError`.
        """
        while True:
            connection = await self._connector.connect(self.request, [], self.timeout)
            protocol = connection.protocol
            used = protocol in self._used
            if used and (fresh or connection.transport is None or connection.transport.is_closing()):
                connection.close()
                continue
            if not used:
                self._used.add(protocol)
                protocol._buffer = _NEVER_FILLED  # type: ignore[union-attr]
            return UpstreamConnection(connection, self._turns), used

    async def close(self) -> None:
        """Close all connections."""
        await self._connector.close()

    def message(self, body: Sequence[BodyPart], *, credential: str, accept: str, trace: str) -> list[BodyPart]:
        """Return the whole request. `trace` is header lines, already checked, each with its line end."""
        lines = f"Accept: {accept}\r\n{trace}Content-Length: {sum(map(len, body))}\r\n\r\n"
        return [b"".join((self._heads[credential], lines.encode("latin-1"), body[0])), *body[1:]]
