"""The pool of connections to upstreams, which is aiohttp's, and the prebuilt head of each channel's requests."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from weakref import WeakSet

from aiohttp import ClientRequest, ClientTimeout, TCPConnector, encode_basic_auth
from yarl import URL

from gateway.chat.request import BodyPart
from gateway.config.channel import Channel
from gateway.proxy.credentials import Credentials
from gateway.proxy.upstream import UpstreamConnection


class UpstreamPool:
    """The connections to all channels."""

    def __init__(self) -> None:
        self._connector = TCPConnector(limit=0, ttl_dns_cache=300, keepalive_timeout=4)
        self._targets: dict[Channel, Target] = {}
        self._used: WeakSet[object] = WeakSet()

    def target(self, channel: Channel) -> Target:
        """Return where a channel's requests go. It is built once for each channel."""
        target = self._targets.get(channel)
        if target is None:
            target = self._targets[channel] = Target(channel)
        return target

    async def open(self, target: Target, *, fresh: bool) -> tuple[UpstreamConnection, bool]:
        """Return a connection to the target, and whether it was used before. A `fresh` one was not.

        Raises aiohttp's client errors and `OSError`.
        """
        while True:
            connection = await self._connector.connect(target.request, [], target.timeout)
            protocol = connection.protocol
            used = protocol in self._used
            if used and (fresh or connection.transport is None or connection.transport.is_closing()):
                connection.close()
                continue
            if not used:
                self._used.add(protocol)
            return UpstreamConnection(connection), used

    async def close(self) -> None:
        """Close all idle connections."""
        await self._connector.close()


class Target:
    """One channel's address, its credentials, and the head that every request to it begins with.

    A proxy is used only where the channel names one; the environment's is ignored. A channel with a `ca_file` trusts the
    authorities in that file and no others.
    """

    def __init__(self, channel: Channel) -> None:
        url = URL(channel.base_url.rstrip("/") + "/chat/completions")
        proxy = URL(channel.proxy) if channel.proxy else None
        login = encode_basic_auth(proxy.user, proxy.password or "") if proxy is not None and proxy.user else ""
        self.credentials = Credentials(channel.credentials)
        port = "" if url.is_default_port() else f":{url.port}"
        host = f"[{url.host}]" if url.host and ":" in url.host else url.host
        self.request = ClientRequest(
            "POST",
            url,
            loop=asyncio.get_running_loop(),
            ssl=ssl.create_default_context(cafile=channel.ca_file) if channel.ca_file else True,
            proxy=proxy.with_user(None) if proxy is not None else None,
            proxy_headers={"Host": f"{host}{port}", "Proxy-Authorization": login} if login else None,
        )
        self.timeout = ClientTimeout(total=None, connect=channel.timers.connect)
        # Only a tunnel, which is for https, hides the request from the proxy.
        forwarded = proxy is not None and url.scheme == "http"
        proxy_login = f"Proxy-Authorization: {login}\r\n" if forwarded and login else ""
        self._head = (
            f"POST {url if forwarded else url.raw_path_qs} HTTP/1.1\r\nHost: {host}{port}\r\n{proxy_login}"
            "Content-Type: application/json\r\nAccept-Encoding: identity\r\nUser-Agent: sluicegate\r\n"
        ).encode("latin-1")

    def message(self, body: Sequence[BodyPart], *, credential: str, accept: str, trace: str) -> list[BodyPart]:
        """Return the whole request. `trace` is header lines, already checked, each with its line end."""
        authorization = f"Authorization: Bearer {credential}\r\n" if credential else ""
        lines = f"{authorization}Accept: {accept}\r\n{trace}Content-Length: {sum(map(len, body))}\r\n\r\n"
        return [b"".join((self._head, lines.encode("latin-1"), body[0])), *body[1:]]
