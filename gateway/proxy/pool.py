"""The pool of connections to upstreams, which is aiohttp's, and the prebuilt head of each channel's requests.

A head is made once for each credential.

**The credentials of a channel** are used in turn. A conversation that has affinity gets the one that rendezvous hashing gives it,
the same in every worker. One that the upstream refuses is not used for a while, by no worker; one that has nothing left to spend is
not used until an operator says so.

One refusal does not tell whether it is about the credential or about what the request contains. So the credential is in doubt: it
is set aside for the account that met it, by this worker. It is set aside for all accounts and workers when:

- after a 401, the next credential is accepted for the same request, or another 401 comes before a call with it has succeeded;
- after a 402 or 403, a second account meets one before a call with that credential has succeeded.

No credential is ever logged: log lines have its number in the list, counted from 1.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote
from weakref import WeakSet

from aiohttp import ClientRequest, ClientTimeout, TCPConnector, encode_basic_auth
from yarl import URL

from gateway.base.ids import drawn
from gateway.base.log import log
from gateway.chat.dialect import Dialect
from gateway.chat.request import BodyPart
from gateway.chat.usage import Pace
from gateway.config.channel import Channel, auth_of
from gateway.operations.wire_format import JSON, WireFormat
from gateway.proxy.failure import UpstreamFailure
from gateway.proxy.scheduler import Turns
from gateway.proxy.upstream import UpstreamConnection
from gateway.store.channels import SUSPENDED_S, CredentialStates, fingerprint_of

AIOHTTP_ATTRIBUTES: Final = ("_buffer",)
"""Of `aiohttp.client_proto.ResponseHandler`, as read in 3.14.5: the responses that it has parsed."""
AIOHTTP_CONNECTOR: Final = ("_get",)
"""Of `aiohttp.TCPConnector`: returns an idle connection or None. It waits for nothing, so that it needs no timeout."""
KEEP_S: Final = 2.0
"""How long a connection is kept at hand after an answer, and then in the pool. Many upstreams close one after five seconds."""
_NEVER_FILLED: Final = deque[Any]()
"""For all connections: aiohttp's protocol parses nothing here, and an empty deque takes 760 bytes."""

_COMMON: Mapping[str, str] = {
    "Accept-Encoding": "identity",
    "User-Agent": "sluicegate",
}

MAX_ACCOUNTS: Final = 64
"""Accounts for which one credential is set aside at the same time; the earliest is forgotten first."""


class UpstreamPool:
    """The endpoints of all channels, each with connections of its own.

    A channel whose settings or certificates change has another endpoint, so no connection, credential or authority of the one
    before is used for it. An endpoint is closed once no exchange of a generation that used it is left.
    """

    def __init__(self, credentials: CredentialStates | None = None) -> None:
        self._credentials = credentials or CredentialStates()
        self._endpoints: dict[object, Endpoint] = {}
        self._turns = Turns()

    def endpoint(self, channel: Channel, generation: int = 1, dialect: Dialect | None = None) -> Endpoint:
        """Return the endpoint of a channel for an exchange of this generation. It is built once for each channel.

        A dialect is of one generation, and so is the endpoint of a channel that has one.
        """
        key: object = channel.identity if dialect is None else (channel.identity, dialect)
        endpoint = self._endpoints.get(key)
        if endpoint is None:
            endpoint = self._endpoints[key] = Endpoint(channel, self._turns, self._credentials, dialect)
        endpoint.generations.add(generation)
        return endpoint

    async def retire(self, generation: int, channels: Iterable[Channel]) -> None:
        """Close the endpoints that only this generation used, except those of `channels`. No exchange of it may be left."""
        kept = {channel.identity for channel in channels}
        for identity, endpoint in list(self._endpoints.items()):
            endpoint.generations.discard(generation)
            if not endpoint.generations and identity not in kept:
                del self._endpoints[identity]
                await endpoint.close()

    async def close(self) -> None:
        """Close all connections."""
        while self._endpoints:
            await self._endpoints.popitem()[1].close()


class Endpoint:
    """One channel's address, its credentials and connections, and the head that every request to it begins with.

    A proxy is used only where the channel names one; the environment's is ignored. A channel with a `ca_file` trusts the
    authorities in that file and no others.
    """

    def __init__(
        self, channel: Channel, turns: Turns, credentials: CredentialStates, dialect: Dialect | None = None
    ) -> None:
        url = URL(channel.base_url)
        proxy = URL(channel.proxy) if channel.proxy else None
        login = encode_basic_auth(proxy.user, proxy.password or "") if proxy is not None and proxy.user else ""
        self.credentials = Credentials(channel.credentials, credentials)
        self._turns = turns
        self.paces: defaultdict[str, Pace] = defaultdict(Pace)
        """The pace of each of its models."""
        self.generations: set[int] = set()
        """The generations of the configuration whose exchanges may use it."""
        kept_s = KEEP_S if proxy is None else 2 * KEEP_S
        self._connector = TCPConnector(limit=0, ttl_dns_cache=300, keepalive_timeout=kept_s)
        self._used: WeakSet[object] = WeakSet()
        self._at_hand: deque[tuple[UpstreamConnection, float]] = deque()
        self._sweeping: asyncio.TimerHandle | None = None
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
        self._channel, self._dialect, self._host = channel, dialect, f"{host}{port}"
        # Only a tunnel, which is for https, hides the request from the proxy.
        self._forwarded = proxy is not None and url.scheme == "http"
        self._login = login if self._forwarded else ""
        """The value of `Proxy-Authorization`, if any."""
        self._heads: dict[tuple[WireFormat, str], dict[str, bytes]] = {}
        """What requests begin with, by the operation and the type that is accepted, and then by the credential."""

    def at_hand(self) -> UpstreamConnection | None:
        """Return a connection of an answer that has just ended, if there is one."""
        while self._at_hand:
            found, _ = self._at_hand.pop()
            if found.again():
                return found
        return None

    async def idle(self) -> UpstreamConnection | None:
        """Return a connection that was used before, if there is one now."""
        if self.request.proxy is not None:
            return None
        while (connection := await self._connector._get(self._key, [])) is not None:
            transport = connection.transport
            if transport is not None and not transport.is_closing():
                return UpstreamConnection(connection, self._turns, self._keep)
            connection.close()
        return None

    def _keep(self, connection: UpstreamConnection) -> None:
        """Keep a connection at hand whose answer has ended: the next request takes it without aiohttp's pool.

        One through a proxy goes to that pool, where only aiohttp knows which tunnel it is.
        """
        if self.request.proxy is not None:
            connection.give_back()
            return
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + KEEP_S
        self._at_hand.append((connection, ends_at))
        if self._sweeping is None:
            self._sweeping = loop.call_at(ends_at, self._sweep)

    def _sweep(self) -> None:
        """Give connections to the pool that were not used for a time."""
        loop = asyncio.get_running_loop()
        while self._at_hand and self._at_hand[0][1] <= loop.time():
            self._at_hand.popleft()[0].give_back()
        self._sweeping = loop.call_at(self._at_hand[0][1], self._sweep) if self._at_hand else None

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
            return UpstreamConnection(connection, self._turns, self._keep), used

    async def close(self) -> None:
        """Close all connections."""
        if self._sweeping is not None:
            self._sweeping.cancel()
        while self._at_hand:
            self._at_hand.pop()[0].give_back()
        await self._connector.close()

    def message(
        self, wire: WireFormat, body: Sequence[BodyPart], credential: str, accept: str, more: str
    ) -> list[BodyPart]:
        """Return the whole request. `more` is header lines, already checked, each with its line end."""
        found = self._heads.get((wire, accept))
        if found is None:
            given = f"Accept: {accept}\r\n".encode("latin-1")
            found = self._heads[wire, accept] = {name: head + given for name, head in self._head_of(wire).items()}
        size = len(body[0]) if len(body) == 1 else sum(map(len, body))
        lines = b"%bContent-Length: %d\r\n\r\n" % (more.encode("latin-1"), size)
        return [b"".join((found[credential], lines, body[0])), *body[1:]]

    def _head_of(self, wire: WireFormat) -> dict[str, bytes]:
        """Return the head by credential, without the headers that differ from request to request."""
        url = address_of(self._channel, self._dialect, wire)
        target = str(url) if self._forwarded else url.raw_path
        found: dict[str, bytes] = {}
        for credential in self._channel.credentials or ("",):
            headers, query = headers_and_query(self._channel, self._dialect, wire, credential)
            if self._login:
                headers["Proxy-Authorization"] = self._login
            lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
            pairs = "&".join(f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in query.items())
            pairs = "&".join(filter(None, (pairs, wire.query)))
            start = f"{wire.method} {target}{'?' if pairs else ''}{pairs} HTTP/1.1\r\nHost: {self._host}\r\n"
            found[credential] = f"{start}{lines}".encode("latin-1")
        return found

    def bodyless(self, wire: WireFormat, credential: str) -> bytes:
        """Return the whole of a request without a body."""
        return self._head_of(wire)[credential] + b"Accept: application/json\r\nContent-Length: 0\r\n\r\n"


def address_of(channel: Channel, dialect: Dialect | None, wire: WireFormat) -> URL:
    """Return the address that a channel's requests go to, without what `query` adds."""
    return URL(channel.base_url.rstrip("/") + (wire.path if dialect is None else dialect.path))


def headers_and_query(
    channel: Channel, dialect: Dialect | None, wire: WireFormat, credential: str
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the headers of requests with a credential, without those that differ from request to request, and the query."""
    auth, query = channel.auth_way(wire.auth if dialect is None else auth_of(dialect.auth)), dict(channel.query)
    given = {"Content-Type": wire.accepts} if wire.accepts == JSON else {}  # a form's names its boundary
    given |= {**_COMMON, **({} if dialect is None else dialect.headers)}
    own = {name.lower() for name in channel.headers}
    headers = {name: value for name, value in given.items() if name.lower() not in own} | dict(channel.headers)
    if credential and auth.way == "query":
        query[auth.name] = credential
    elif credential:
        headers[auth.name] = f"{'Bearer ' if auth.way == 'bearer' else ''}{credential}"
    return headers, query


class Credentials:
    """The credentials of one endpoint in one worker. A channel without credentials has one empty credential."""

    def __init__(self, credentials: Sequence[str], states: CredentialStates | None = None) -> None:
        self._states = states or CredentialStates()
        self._all = tuple(credentials) or ("",)
        self._fingerprints = [fingerprint_of(credential) for credential in self._all]
        self._aside_until: list[dict[str, float]] = [{} for _ in self._all]
        self._in_doubt: dict[int, frozenset[str]] = {}
        """The account that met a refusal, by the index of the credential, as long as no call with it has succeeded."""
        self._turn = 0

    def next(self, channel: str = "", account: str = "", session: str = "", only: str = "") -> str:
        """Return the credential whose turn it is, or the one that the account may use first where all are set aside.

        Of a `session` it is the same one each time, as long as it may be used. `only`: the fingerprint of the one to use.
        """
        count = len(self._all)
        if count == 1:
            return self._all[0]
        if only:
            return self._all[self._fingerprints.index(only)]
        now = time.monotonic()
        if session:
            turns = sorted(range(count), key=lambda index: drawn(session, self._fingerprints[index]), reverse=True)
        else:
            turns = [(self._turn + step) % count for step in range(count)]
        chosen = min(
            turns,
            key=lambda index: max(now, self._until(channel, index), self._aside_until[index].get(account, 0.0)),
        )
        if not session:
            self._turn = (chosen + 1) % count
        return self._all[chosen]

    def worked(self, credential: str, channel: str, refused: Sequence[str]) -> None:
        """Note that the upstream accepted a credential, and for the same request `refused` others before, by 401."""
        if self._in_doubt or self._states.aside:
            index = self._all.index(credential)
            self._in_doubt.pop(index, None)
            self._states.worked(channel, self._fingerprints[index])
            for other in refused:
                self.refused(other, channel, "401")

    def another(self, credential: str, channel: str, account: str, failed: UpstreamFailure) -> bool:
        """Note that a call of an account failed. Return whether it is to be repeated with the next credential."""
        if not (failed.spent or failed.credential_refused or failed.forbidden) or (
            self._doubt(credential, channel, account, failed) and failed.why == "403"
        ):
            return False
        now = time.monotonic()
        return any(
            max(self._until(channel, other), aside.get(account, 0.0)) <= now
            for other, aside in enumerate(self._aside_until)
        )

    def all_refused(self, channel: str) -> bool:
        """Return whether every credential is set aside for all accounts."""
        now = time.monotonic()
        return all(self._until(channel, index) > now for index in range(len(self._all)))

    def refused(self, credential: str, channel: str, why: str = "", *, spent: bool = False) -> None:
        """Set a credential aside and log an error: for a while, or until an operator says otherwise where it is `spent`.

        Refused ones are used all the same where there is no other: the circuit breaker opens for the channel instead.
        """
        index = self._all.index(credential)
        self._in_doubt.pop(index, None)
        self._aside_until[index].clear()  # it is for all now, and ends for all
        log.error("credential_refused", channel=channel, number=index + 1, of=len(self._all), reason=why, spent=spent)
        self._states.on_refused(channel, index + 1, len(self._all), spent)
        self._states.refused(channel, self._fingerprints[index], why, spent=spent)

    def _doubt(self, credential: str, channel: str, account: str, failed: UpstreamFailure) -> bool:
        """Set a credential aside for an account, or for all where the doubt is over. Return whether there still is doubt."""
        index = self._all.index(credential)
        accounts = self._in_doubt.get(index, frozenset())
        if accounts and (account not in accounts or (failed.credential_refused and not failed.spent)):
            why = f"{failed.why}{' for several accounts' if failed.forbidden else ''}"
            self.refused(credential, channel, why, spent=failed.spent)
            return False
        self._in_doubt[index] = frozenset((account,))
        if failed.credential_refused or failed.spent:
            self._states.on_refused(channel, index + 1, len(self._all), False)
        log.warning(
            "credential_in_doubt",
            channel=channel,
            number=index + 1,
            of=len(self._all),
            account=account,
            reason=failed.why,
        )
        aside = self._aside_until[index]
        aside.pop(account, None)
        aside[account] = time.monotonic() + SUSPENDED_S
        if len(aside) > MAX_ACCOUNTS:
            del aside[next(iter(aside))]
        return True

    def _until(self, channel: str, index: int) -> float:
        return self._states.until(channel, self._fingerprints[index])
