"""The upstream's side of an exchange: one HTTP/1.1 call on a connection from aiohttp's pool.

DNS, TLS, proxies, keep-alive and limits stay aiohttp's. For the length of the answer its transport is given to a small
protocol over llhttp, so that what one read of the socket brought reaches the caller in one write, without a task switch.
"""

from __future__ import annotations

import asyncio
import ssl
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final
from weakref import WeakSet

import httptools
from aiohttp import ClientRequest, ClientTimeout, TCPConnector, encode_basic_auth
from multidict import CIMultiDict
from yarl import URL

from gateway.chat.request import Piece
from gateway.config.channel import Channel
from gateway.proxy.credentials import Credentials

if TYPE_CHECKING:
    from aiohttp.connector import Connection

LONGEST_HEAD: Final = 64 * 1024

_BUFFER: Final = memoryview(bytearray(64 * 1024))
"""What every read of every upstream goes into. The parser has copied it when the read returns, so one is enough; its size
bounds what a stream holds, and what reading costs.
"""


class Garbled(Exception):
    """The upstream does not speak HTTP/1.1, or not as asked."""


class UpstreamSide(asyncio.BufferedProtocol):
    """The answer to one call.

    `on_head` is told once: status and headers are in, or there is a `failure`. From `flow_to` on, each read's body bytes go to
    `on_data` in one piece, and `on_end(clean)` comes once: whether the answer ended as its framing promised.
    """

    __slots__ = (
        "_connection",
        "_ended",
        "_framed",
        "_head_bytes",
        "_headed",
        "_named_bytes",
        "_on_data",
        "_on_end",
        "_parser",
        "_pieces",
        "_pooled",
        "_reading",
        "_reusable",
        "_transport",
        "_whole",
        "answered",
        "failure",
        "headers",
        "on_body",
        "on_head",
        "status",
    )  # fmt: skip

    def __init__(self, connection: Connection) -> None:
        transport, pooled = connection.transport, connection.protocol
        if transport is None or pooled is None:
            raise ConnectionResetError("the pooled connection was closed")
        self._connection = connection
        self._transport = transport
        self._pooled = pooled
        self._pieces: list[bytes] = []
        self.on_body = self._pieces.append
        """For the parser: no call of Python for a piece of an event."""
        self._parser = httptools.HttpResponseParser(self)
        self._whole = sys.maxsize
        self._headed = False
        self._head_bytes = 0
        self._named_bytes = 0
        self._framed = False
        self._ended: bool | None = None
        self._reading = True
        self._reusable = False
        self._on_data: Callable[[bytes], None] | None = None
        self._on_end: Callable[[bool], None] | None = None
        self.answered = False
        self.status = 0
        self.headers: CIMultiDict[str] = CIMultiDict()
        self.failure: Garbled | ConnectionError | None = None
        self.on_head: Callable[[], None] | None = None
        _hand(transport, self)

    @property
    def encoded(self) -> bool:
        """Whether the body is compressed, which nobody asked for."""
        return self.headers.get("Content-Encoding", "identity").lower() != "identity"

    @property
    def media_type(self) -> str:
        """What the body is; nothing for one that is encoded."""
        return "" if self.encoded else self.headers.get("Content-Type", "").partition(";")[0].strip().lower()

    def send(self, message: Sequence[Piece]) -> None:
        """The whole request, in one write."""
        self._transport.writelines(message)

    def flow_to(self, on_data: Callable[[bytes], None], on_end: Callable[[bool], None]) -> None:
        """Hand over the body, what is already here first."""
        self._on_data = on_data
        self._on_end = on_end
        self._hand_over()
        self.resume()

    def pause(self) -> None:
        """Stop reading: the caller is slower than the upstream."""
        if self._reading and self._ended is None:
            self._reading = False
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        if not self._reading and self._ended is None:
            self._reading = True
            self._transport.resume_reading()

    def release(self) -> None:
        """Give the connection back if its answer ended as promised; close it otherwise."""
        self._on_data = self._on_end = self.on_head = None
        del self._parser  # they hold each other
        if self._ended and self._reusable and not self._transport.is_closing():
            _hand(self._transport, self._pooled)
            self._connection.release()
        else:
            self._connection.close()
            self._transport.abort()

    # What the transport calls.

    def get_buffer(self, sizehint: int) -> memoryview:
        return _BUFFER

    def buffer_updated(self, nbytes: int) -> None:
        if self._ended is not None:
            self._reusable = False
            return
        self.answered = True
        try:
            self._parser.feed_data(_BUFFER[:nbytes])
        except (httptools.HttpParserError, httptools.HttpParserUpgrade, Garbled):
            self._fail(Garbled("the answer is not HTTP/1.1"))
        if not self._headed:
            self._head_bytes += nbytes
            if self._head_bytes > LONGEST_HEAD:
                self._fail(Garbled("the head of the answer is too long"))
        on_data, pieces = self._on_data, self._pieces
        if self._ended is None and on_data is not None and len(pieces) == 1:
            on_data(pieces.pop())
        else:
            self._hand_over()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._pooled.connection_lost(exc)
        if self._ended is None:
            if self._headed:
                self._ended = not self._framed and exc is None
            else:
                self._fail(ConnectionResetError("the upstream closed the connection"))
        self._hand_over()

    # What the parser calls.

    def on_header(self, name: bytes, value: bytes) -> None:
        self._named_bytes += len(name) + len(value)
        if self._named_bytes > LONGEST_HEAD:
            raise Garbled("the head of the answer is too long")
        if 100 <= self._parser.get_status_code() < 200 or self._ended is not None:
            return
        self.headers.add(name.decode("latin-1"), value.decode("latin-1"))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if self._ended is not None:
            self._reusable = False  # a second answer
            return
        if status < 200:
            if status == 101:
                raise Garbled("switching protocols was not asked for")
            return
        self.status = status
        self._framed = "Content-Length" in self.headers or "Transfer-Encoding" in self.headers or status in (204, 304)
        self._tell_head()

    def on_message_complete(self) -> None:
        if self._headed and self._ended is None:
            self._ended = True
            self._reusable = self._parser.should_keep_alive()
            self._whole = len(self._pieces)  # what the parser may find behind it belongs to no request

    def _hand_over(self) -> None:
        if self._on_data is None or self._on_end is None:
            return
        if self._pieces:
            data = b"".join(self._pieces[: self._whole])
            self._pieces.clear()
            if data:
                self._on_data(data)
        if self._ended is not None and self._on_end is not None:
            on_end, self._on_end = self._on_end, None
            on_end(self._ended)

    def _fail(self, error: Garbled | ConnectionError) -> None:
        self._ended = False
        if not self._headed:
            self.failure = error
            self._tell_head()

    def _tell_head(self) -> None:
        self._headed = True
        if self.on_head is not None:
            self.on_head()


def _hand(transport: asyncio.Transport, protocol: asyncio.BaseProtocol) -> None:
    """Give a transport to another protocol; uvloop asks how to read only when reading begins."""
    transport.pause_reading()
    transport.set_protocol(protocol)
    transport.resume_reading()


class Upstreams:
    """The connections to all channels, and the prebuilt heads of their requests."""

    def __init__(self) -> None:
        self._connector = TCPConnector(limit=0, ttl_dns_cache=300, keepalive_timeout=4)
        self._targets: dict[Channel, Target] = {}
        self._used: WeakSet[object] = WeakSet()

    def target(self, channel: Channel) -> Target:
        """Where a channel's requests go; made once for each channel."""
        target = self._targets.get(channel)
        if target is None:
            target = self._targets[channel] = Target(channel)
        return target

    async def open(self, target: Target, *, fresh: bool) -> tuple[UpstreamSide, bool]:
        """A connection to the target, and whether it was used before, which a `fresh` one was not.

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
            return UpstreamSide(connection), used

    async def close(self) -> None:
        """Close all idle connections."""
        await self._connector.close()


class Target:
    """One channel's address and credentials, and the head that every request to it begins with.

    `proxy` is used where the channel names one, and the environment's never. A channel with a `ca_file` trusts what that
    file says and nothing else.
    """

    def __init__(self, channel: Channel) -> None:
        url = URL(channel.base_url.rstrip("/") + "/chat/completions")
        proxy = URL(channel.proxy) if channel.proxy else None
        login = encode_basic_auth(proxy.user, proxy.password or "") if proxy is not None and proxy.user else ""
        self.channel = channel
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

    def message(self, body: Sequence[Piece], *, credential: str, accept: str, trace: str) -> list[Piece]:
        """The whole request. `trace` is header lines that were checked, each with its line end."""
        authorization = f"Authorization: Bearer {credential}\r\n" if credential else ""
        lines = f"{authorization}Accept: {accept}\r\n{trace}Content-Length: {sum(map(len, body))}\r\n\r\n"
        return [b"".join((self._head, lines.encode("latin-1"), body[0])), *body[1:]]
