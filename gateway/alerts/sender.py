"""The process that sends alerts: of all gateways that share a store, the one that has the lease.

1. **An event is sent until the receiver answers 2xx or a day has passed**, with exponential backoff and jitter. Then it is given
   up and logged. What was sent but could not be reported, since the store is away, is reported later and not sent again by this
   process.
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
from gateway.alerts.event import Event, Outbox, OutboxEntry, Outcome
from gateway.alerts.signature import sign
from gateway.base.errors import GatewayError, StoreAway
from gateway.base.ids import new_id
from gateway.base.log import Logger

AT_ONCE: Final = 8
LEASE_S: Final = 30.0
"""Longer than the attempts of one round take. So long an event may wait when the process that sends is killed."""
PAUSE_S: Final = 0.5
AWAY_AFTER_S: Final = 5.0
"""How long a store does not answer until that is an event: a failover takes less."""
FIRST_S: Final = 2.0
LONGEST_S: Final = 3600.0
GIVEN_UP_AFTER_S: Final = 86_400.0
MAX_OWN: Final = 20
"""Events about the store that wait in memory."""
STOP_S: Final = 3.0
"""How long a stop waits for attempts in progress. What they do not finish is sent again."""

log = Logger("gateway.alerts.sender")

CONNECT_S: Final = 5.0
TOTAL_S: Final = 10.0
BODY_S: Final = 1.0
MAX_BODY: Final = 4096
MAX_SHOWN: Final = 300
"""Characters of an answer's body that are shown."""


class Own(msgspec.Struct):
    """An event that the store cannot keep, and the monotonic time of its next attempt."""

    entry: OutboxEntry
    due: float = 0.0


class Sender:
    """Sends the events of one outbox to one webhook.

    `count(result)` is called for each attempt, `pending(number)` with the number of events in the outbox.
    """

    def __init__(
        self,
        outbox: Outbox,
        *,
        count: Callable[[str], None] = lambda result: None,
        pending: Callable[[int], None] = lambda number: None,
        lease_s: float = LEASE_S,
        away_after_s: float = AWAY_AFTER_S,
        first_s: float = FIRST_S,
    ) -> None:
        self._outbox = outbox
        self._count = count
        self._pending = pending
        self._lease_ms = round(lease_s * 1000)
        self._away_after_s = away_after_s
        self._first_s = first_s
        self._name = new_id()
        self._gateway = socket.gethostname()
        self._webhook: Webhook | None = None
        self._next: Webhook | None = None
        self._store_events = False
        self._unreported: dict[str, tuple[OutboxEntry, Outcome, int]] = {}
        self._own: deque[Own] = deque(maxlen=MAX_OWN)
        self._failing_since: float | None = None
        self._away = False

    def use(self, webhook: Webhook | None, *, store_events: bool) -> None:
        """Send to this webhook from now on; None: send nothing. `store_events`: whether a store that is away is an event."""
        self._next, self._store_events = webhook, store_events

    async def run(self, stop: asyncio.Event) -> None:
        """Send what is due, again and again, until `stop` is set. Then let another process send."""
        stopping = asyncio.ensure_future(stop.wait())
        try:
            while not stop.is_set():
                step = asyncio.ensure_future(self.step())
                await asyncio.wait((step, stopping), return_when=asyncio.FIRST_COMPLETED)
                if not step.done():
                    await asyncio.wait((step,), timeout=STOP_S)
                if not step.done():
                    step.cancel()
                    await asyncio.wait((step,))
                    break
                if not step.result():
                    await asyncio.wait((stopping,), timeout=PAUSE_S)
        finally:
            stopping.cancel()
            self.use(None, store_events=False)
            await self._switch()
            with suppress(GatewayError):
                await self._report()
                await self._outbox.release(self._name)

    async def step(self) -> bool:
        """Send what is due now. Return whether the receiver accepted anything, so that there may be more to send."""
        if (webhook := await self._switch()) is None:
            return False
        entries: list[OutboxEntry] = []
        try:
            await self._report()
            taken = await self._outbox.take(self._name, self._lease_ms, AT_ONCE)
            self._pending(taken.pending)
            entries = taken.entries or []
            self._store_answers()
        except StoreAway as error:
            self._store_fails(error)
        except Exception:
            log.exception("alerts_failed")
        accepted = await asyncio.gather(*(self._send(webhook, entry) for entry in entries), self._send_own(webhook))
        return any(accepted)

    async def _switch(self) -> Webhook | None:
        """Return the webhook to use, and close the one before: no attempt is in progress now."""
        if self._webhook is not None and self._webhook is not self._next:
            await self._webhook.close()
        self._webhook = self._next
        return self._webhook

    async def _send(self, webhook: Webhook, entry: OutboxEntry) -> bool:
        """Attempt an event of the outbox, and report how it ended. Return whether the receiver accepted it."""
        tried, delay_s = await self._attempt(webhook, entry)
        outcome: Outcome = "sent" if not tried.error else "given_up" if delay_s is None else "again"
        self._unreported[entry.id] = tried, outcome, round((delay_s or 0) * 1000)
        with suppress(GatewayError):
            await self._report(entry.id)
        return not tried.error

    async def _send_own(self, webhook: Webhook) -> bool:
        """Attempt the first of the events that are kept in memory, if it is due. Return whether the receiver accepted it."""
        if not self._own or self._own[0].due > time.monotonic():
            return False
        own = self._own[0]
        own.entry, delay_s = await self._attempt(webhook, own.entry)
        if own.entry.error and delay_s is not None:
            own.due = time.monotonic() + delay_s
        elif self._own and self._own[0] is own:
            self._own.popleft()
        return not own.entry.error

    async def _attempt(self, webhook: Webhook, entry: OutboxEntry) -> tuple[OutboxEntry, float | None]:
        """Send an event once. Return it with the outcome, and in how many seconds to try again; None for never."""
        answer = await webhook.post(entry.id, entry.body.encode())
        attempts = entry.attempts + 1
        entry = msgspec.structs.replace(entry, attempts=attempts, error=answer.error)
        where = {"type": entry.type, "id": entry.id, "host": webhook.host, "attempts": attempts}
        if not answer.error:
            self._count("sent")
            log.info("alert_sent", **where)
            return entry, None
        if event.now_ms() - entry.created_ms >= GIVEN_UP_AFTER_S * 1000:
            self._count("given_up")
            log.error("alert_given_up", **where, reason=answer.error, cure=answer.cure)
            return entry, None
        self._count("failed")
        longest_s = min(LONGEST_S, self._first_s * 2.0 ** min(attempts - 1, 30))
        delay_s = longest_s * random.uniform(0.5, 1.0)  # noqa: S311 - it spreads attempts
        log.warning("alert_failed", **where, reason=answer.error, cure=answer.cure, again_in_s=round(delay_s, 1))
        return entry, delay_s

    async def _report(self, only: str | None = None) -> None:
        """Report the outcomes that the store does not know yet. Raises `GatewayError`; they are then kept."""
        for id in [only] if only else list(self._unreported):  # noqa: A001
            entry, outcome, delay_ms = self._unreported[id]
            await self._outbox.report(entry, outcome, delay_ms)
            del self._unreported[id]

    def _store_answers(self) -> None:
        self._failing_since = None
        if self._away:
            self._away = False
            self._keep(event.store_back(self._gateway))
            log.warning("store_answers_alerts")

    def _store_fails(self, error: StoreAway) -> None:
        now = time.monotonic()
        if self._failing_since is None:
            self._failing_since = now
        if not self._away and now - self._failing_since >= self._away_after_s:
            self._away = True
            self._keep(event.store_away(self._gateway))
            log.error("alerts_wait", reason=str(error))

    def _keep(self, happened: Event) -> None:
        if self._store_events:
            if len(self._own) == MAX_OWN:
                self._count("dropped")
            self._own.append(Own(event.entry_of(happened)))


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
        self._session: ClientSession | None = None

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
            async with self._client().post(self._url, data=body, headers=headers, allow_redirects=False) as response:
                text = await self._beginning(response)
                response.close()  # the rest of the body is not read
                return _judged(response.status, text)
        except (ClientError, OSError, TimeoutError, ValueError) as error:
            return Delivery(0, *_reason(error, self._total_s))

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
