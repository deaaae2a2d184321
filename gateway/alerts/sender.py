"""Delivery of the queued alerts of one receiver to its webhook, by any process that shares the store.

1. **An event is sent until the receiver answers 2xx or a day has passed**, with exponential backoff and jitter. Then it is given
   up and logged. One whose outcome could not be written down is sent again after `LEASE_S`, with the same id.
2. **A store that does not answer is an event of each gateway of its own**: it is kept in memory and sent from there, in order.
3. At most `AT_ONCE` attempts run at once, so that an address that does not answer costs no memory.

One attempt to deliver an event is a signed POST, of whose answer the status counts (`Webhook`).

4. No attempt takes longer than `TOTAL_S`. No redirect is followed, no proxy of the environment used.
5. Of the answer's body at most `MAX_BODY` bytes are read, and none are decompressed.
6. The address may hold a credential: errors and answers name nothing of it, see `Delivery`.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
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

from gateway.alerts import event
from gateway.alerts.event import DueEvent, Outbox, OutboxEntry
from gateway.alerts.signature import sign
from gateway.base.errors import GatewayError, StoreAway
from gateway.base.ids import now_ms
from gateway.base.log import log

AT_ONCE: Final = 8
LEASE_S: Final = 30.0
"""Longer than one round of attempts takes. So long an event waits when the process that sends it stops or is killed."""
PAUSE_S: Final = 0.5
AWAY_AFTER_S: Final = 5.0
"""How long a store does not answer until that is an event: a failover takes less."""
FIRST_S: Final = 2.0
LONGEST_S: Final = 3600.0
GIVEN_UP_AFTER_S: Final = 86_400.0
MAX_OWN: Final = 20
"""Events about the store that wait in memory."""

CONNECT_S: Final = 5.0
TOTAL_S: Final = 10.0
BODY_S: Final = 1.0
MAX_BODY: Final = 4096
MAX_SHOWN: Final = 300
"""Characters of an answer's body that are shown."""


class Sender:
    """Sends the queued events of one receiver to its webhook.

    `count(result)` is called for each attempt, `pending(number)` with the number of queued events.
    """

    def __init__(
        self,
        outbox: Outbox,
        *,
        count: Callable[[str], None] = lambda result: None,
        pending: Callable[[int], None] = lambda number: None,
    ) -> None:
        self._outbox = outbox
        self._count = count
        self._pending = pending
        self._gateway = socket.gethostname()
        self._webhook: Webhook | None = None
        self._store_events = False
        self._own: deque[OutboxEntry] = deque(maxlen=MAX_OWN)
        self._own_due = 0.0
        self._failing_since: float | None = None
        self._away = False

    def use(self, webhook: Webhook | None, *, store_events: bool) -> None:
        """Send to this webhook from now on; None: send nothing. `store_events`: whether a store that is away is an event."""
        self._webhook, self._store_events = webhook, store_events

    async def run(self, stop: asyncio.Event) -> None:
        """Send what is due, again and again, until `stop` is set. Attempts in progress then are repeated by another process."""
        stopping, sending = asyncio.ensure_future(stop.wait()), asyncio.ensure_future(self._repeat(stop))
        await asyncio.wait((stopping, sending), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        sending.cancel()
        with suppress(asyncio.CancelledError):
            await sending

    async def _repeat(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            if not await self.step():
                await asyncio.sleep(PAUSE_S)

    async def step(self) -> bool:
        """Send what is due now. Return whether the receiver accepted anything, so that there may be more to send."""
        if (webhook := self._webhook) is None:
            return False
        due: list[DueEvent] = []
        try:
            queued, due = await self._outbox.take(AT_ONCE, round(LEASE_S * 1000))
            self._pending(queued)
            self._store_answers()
        except StoreAway as error:
            self._store_fails(error)
        except Exception:
            log.exception("alerts_failed")
        return any(await asyncio.gather(*(self._send(webhook, taken) for taken in due), self._send_own(webhook)))

    async def _send(self, webhook: Webhook, taken: DueEvent) -> bool:
        """Attempt a queued event, and report how it ended. Return whether the receiver accepted it."""
        tried, again_in_s = await self._attempt(webhook, taken.entry)
        with suppress(GatewayError):
            await self._outbox.report(taken, tried, again_in_s)
        return not tried.error

    async def _send_own(self, webhook: Webhook) -> bool:
        """Attempt the first of the events that are kept in memory, if it is due. Return whether the receiver accepted it."""
        if not self._own or self._own_due > time.monotonic():
            return False
        tried, again_in_s = await self._attempt(webhook, self._own[0])
        self._own_due = time.monotonic() + (again_in_s or 0)
        if again_in_s is None:
            self._own.popleft()
        else:
            self._own[0] = tried
        return not tried.error

    async def _attempt(self, webhook: Webhook, entry: OutboxEntry) -> tuple[OutboxEntry, float | None]:
        """Send an event once. Return it with its error, and in how many seconds to try again; None for never."""
        answer = await webhook.post(entry.id, entry.body.encode())
        attempts = entry.attempts + 1
        entry = msgspec.structs.replace(entry, attempts=attempts, error=answer.error)
        where = {"type": entry.type, "id": entry.id, "host": webhook.host, "attempts": attempts}
        if not answer.error:
            self._count("sent")
            log.info("alert_sent", **where)
            return entry, None
        if now_ms() - entry.created_ms >= GIVEN_UP_AFTER_S * 1000:
            self._count("given_up")
            log.error("alert_given_up", **where, reason=answer.error, cure=answer.cure)
            return entry, None
        self._count("failed")
        longest_s = min(LONGEST_S, FIRST_S * 2.0 ** min(attempts - 1, 30))
        delay_s = longest_s * random.uniform(0.5, 1.0)  # noqa: S311 - it spreads attempts
        log.warning("alert_failed", **where, reason=answer.error, cure=answer.cure, again_in_s=round(delay_s, 1))
        return entry, delay_s

    def _store_answers(self) -> None:
        self._failing_since = None
        if self._away:
            self._away = False
            self._keep("back", f"the store answers gateway {self._gateway} again")
            log.warning("store_answers_alerts")

    def _store_fails(self, error: StoreAway) -> None:
        now = time.monotonic()
        if self._failing_since is None:
            self._failing_since = now
        if not self._away and now - self._failing_since >= AWAY_AFTER_S:
            self._away = True
            self._keep("away", f"the store does not answer gateway {self._gateway}: requests get 503")
            log.error("alerts_wait", reason=str(error))

    def _keep(self, happened: str, message: str) -> None:
        """Keep an event about the store, which is `away` or `back`."""
        if self._store_events:
            if len(self._own) == MAX_OWN:
                self._count("dropped")
            self._own.append(event.entry_of(event.event(f"store.{happened}", message, gateway=self._gateway)))


class Delivery(msgspec.Struct, frozen=True):
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

    async def post(self, id: str, body: bytes) -> Delivery:  # noqa: A002 - the specification's name
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
            async with (
                ClientSession(
                    timeout=ClientTimeout(total=self._total_s, connect=min(CONNECT_S, self._total_s)),
                    connector=TCPConnector(force_close=True),
                    cookie_jar=DummyCookieJar(),
                    auto_decompress=False,
                ) as session,
                session.post(self._url, data=body, headers=headers, allow_redirects=False) as response,
            ):
                text = await self._beginning(response)
                response.close()  # the rest of the body is not read
                return _judged(response.status, text)
        except (ClientError, OSError, TimeoutError, ValueError) as error:
            return Delivery(0, *_reason(error, self._total_s))

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


def _judged(status: int, body: str) -> Delivery:
    if 200 <= status < 300:
        return Delivery(status, body=body)
    if 300 <= status < 400:
        return Delivery(
            status, f"it answered {status}, and redirects are not followed", "write the final address", body
        )
    cure = {
        401: "look at the credential in the address, and at the secret that the receiver verifies with",
        403: "look at the credential in the address, and at the secret that the receiver verifies with",
        404: "look at the path of the address",
        405: "the receiver must accept POST",
        410: "the receiver says that this address is no longer in use: write another",
    }
    return Delivery(status, f"it answered {status}", cure.get(status, "look at the receiver's log"), body)


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
