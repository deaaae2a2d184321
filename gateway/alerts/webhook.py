"""One attempt to deliver an event: a signed POST, of whose answer the status counts.

1. No attempt takes longer than `TOTAL_S`. No redirect is followed, no proxy of the environment used.
2. Of the answer's body at most `MAX_BODY` bytes are read, and none are decompressed.
3. The address may hold a credential: errors and answers name nothing of it, see `Answer`.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

import msgspec
from aiohttp import (
    ClientConnectorCertificateError,
    ClientConnectorDNSError,
    ClientConnectorError,
    ClientError,
    ClientResponse,
    ClientSession,
    ClientTimeout,
    DummyCookieJar,
    ServerDisconnectedError,
    TCPConnector,
)

from gateway.alerts.signature import sign

CONNECT_S: Final = 5.0
TOTAL_S: Final = 10.0
BODY_S: Final = 1.0
MAX_BODY: Final = 4096
MAX_SHOWN: Final = 300
"""Characters of an answer's body that are shown."""


class Answer(msgspec.Struct, frozen=True):
    """What became of an attempt. `error`: empty for success, else why it failed, and `cure` what to do.

    `status` is 0 without an answer. `body`: its beginning, without what the webhook's address holds.
    """

    status: int
    error: str = ""
    cure: str = ""
    body: str = ""


class Webhook:
    """The webhook of one configuration, and the keys that sign for it."""

    def __init__(self, url: str, keys: Sequence[bytes], *, total_s: float = TOTAL_S) -> None:
        self.host = urlsplit(url).hostname or ""
        self._url = url
        self._keys = keys
        self._total_s = total_s
        self._session: ClientSession | None = None

    async def post(self, id: str, body: bytes) -> Answer:  # noqa: A002 - the specification's name
        """Send a body once. Never raises for what the network or the receiver does."""
        timestamp = int(time.time())
        headers = {
            "Content-Type": "application/json",
            "Accept-Encoding": "identity",
            "User-Agent": "sluicegate",
            "webhook-id": id,
            "webhook-timestamp": str(timestamp),
            "webhook-signature": sign(self._keys, id, timestamp, body),
        }
        try:
            async with self._client().post(self._url, data=body, headers=headers, allow_redirects=False) as response:
                text = await self._beginning(response)
                response.close()  # the rest of the body is not read
                return _judged(response.status, text)
        except (ClientError, OSError, TimeoutError, ValueError) as error:
            return Answer(0, *_reason(error, self._total_s))

    async def close(self) -> None:
        """Close what is open."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _client(self) -> ClientSession:
        if self._session is None:
            self._session = ClientSession(
                timeout=ClientTimeout(total=self._total_s, connect=min(CONNECT_S, self._total_s)),
                connector=TCPConnector(force_close=True),
                cookie_jar=DummyCookieJar(),
                auto_decompress=False,
            )
        return self._session

    async def _beginning(self, response: ClientResponse) -> str:
        """Return the beginning of the body; empty where it does not come: the status is what counts."""
        try:
            async with asyncio.timeout(BODY_S):
                raw = await response.content.read(MAX_BODY)
        except (ClientError, OSError, TimeoutError):
            return ""
        parts = urlsplit(self._url)
        text = raw.decode(errors="replace")
        for hidden in (self._url, parts.netloc.rpartition("@")[0], parts.password, parts.query, parts.path):
            if hidden and len(hidden) > 1:
                text = text.replace(hidden, "...")
        return "".join(letter if letter.isprintable() else " " for letter in text)[:MAX_SHOWN].strip()


def _judged(status: int, body: str) -> Answer:
    if 200 <= status < 300:
        return Answer(status, body=body)
    if 300 <= status < 400:
        return Answer(status, f"it answered {status}, and redirects are not followed", "write the final address", body)
    cure = {
        401: "look at the credential in the address, and at the secret that the receiver verifies with",
        403: "look at the credential in the address, and at the secret that the receiver verifies with",
        404: "look at the path of the address",
        405: "the receiver must accept POST",
        410: "the receiver says that this address is no longer in use: write another",
    }
    return Answer(status, f"it answered {status}", cure.get(status, "look at the receiver's log"), body)


def _reason(error: Exception, total_s: float) -> tuple[str, str]:
    """Return why there is no answer, and what to do."""
    match error:
        case TimeoutError():
            return f"it did not answer within {total_s:g} s", "look at the receiver, and at what is between"
        case ClientConnectorCertificateError():
            return (
                "its certificate is not trusted",
                "let the receiver have one of an authority that this machine trusts",
            )
        case ssl.SSLError():
            return "TLS with it fails", "does the receiver speak TLS on this port?"
        case ClientConnectorDNSError():
            return "its name cannot be looked up", "look at the address, and at the name servers of this machine"
        case ClientConnectorError():
            reason = os.strerror(error.os_error.errno or 0)
            return f"it cannot be reached ({reason})", "start the receiver, or correct the address"
        case ServerDisconnectedError():
            return "it closed the connection without an answer", "look at the receiver's log"
        case _:
            return f"the request failed ({type(error).__name__})", "look at the receiver's log"
