"""Finds out who asks, from the token in the head of the request.

1. The body is never read here: who is refused is refused on the head alone.
2. A token that is unknown, wrong or malformed gets one answer; what never was one costs no call of the store.
3. A right token is never refused for the wrong ones that come from the same address.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

from multidict import MultiMapping

from gateway import (
    AccountStatus,
    Authenticated,
    Caller,
    Clock,
    Exchange,
    Plugin,
    Refused,
    Services,
    TokenRefused,
    invalid_token,
)

LONGEST_CREDENTIAL = 512
MOST_ADDRESSES = 10_000
"""How many addresses are remembered for their wrong tokens."""


class Auth(Plugin):
    """Lets in callers with a right token, whose account is active and whose group is served."""

    provides = (Caller,)

    wrong_tokens_per_minute: int = 60
    """How many wrong tokens of one address are answered 401 in a minute; the rest are answered 429."""

    def __post_init__(self) -> None:
        if self.wrong_tokens_per_minute < 1:
            raise ValueError("wrong_tokens_per_minute must be 1 or more")

    async def start(self, services: Services) -> None:
        self._tokens = services.store.tokens
        self._catalogue = services.catalogue
        self._wrong = WrongTokens(self.wrong_tokens_per_minute, services.clock)

    async def on_request(self, exchange: Exchange) -> None:
        try:
            known = await self._tokens.authenticate(_credential(exchange.request.headers))
        except TokenRefused as refused:
            if refused.token is not None:
                _name(exchange, refused.token.id)
            self._wrong.count(exchange.request.peer)
            raise
        token, account = known.token, known.account
        _name(exchange, token.id)
        exchange.group = account.group
        exchange[Authenticated] = known
        if account.status is not AccountStatus.ACTIVE:
            raise Refused(
                403, "account_inactive", f"The account is {account.status}. Ask the operator of this service."
            )
        group = self._catalogue.group(account.group)
        if group is None or not group.enabled:
            raise Refused(
                403,
                "group_forbidden",
                "The account's user group is not served here. Ask the operator to change it.",
            )
        if token.addresses and not _within(exchange.request.peer, token.addresses):
            raise Refused(
                403,
                "token_restricted",
                "This token may not be used from this address. Use another, or another network.",
            )
        exchange[Caller] = Caller(
            account=account.id,
            token_id=token.id,
            group=account.group,
            account_models=account.models or None,
            token_models=token.models or None,
            limits=account.limits,
        )

    async def explain(self, exchange: Exchange) -> str:
        """Looks only; that a token was used is written at the end of a request."""
        await self.on_request(exchange)
        return f"token {exchange.token_id} of the active account {exchange.account}, group {exchange.group}"

    async def on_end(self, exchange: Exchange) -> None:
        known = exchange.get(Authenticated)
        if known is not None:
            await self._tokens.touch(known)


class WrongTokens:
    """How many wrong tokens came from each address lately. Of this process only, in bounded memory."""

    def __init__(self, per_minute: int, clock: Clock) -> None:
        self._interval_s = 60 / per_minute
        self._clock = clock
        self._forgotten_at: OrderedDict[str, float] = OrderedDict()

    def count(self, peer: str) -> None:
        """Note one more. Raises `Refused` (429) where there were too many."""
        address = _neighbourhood(peer)
        now = self._clock.monotonic()
        at = max(now, self._forgotten_at.get(address, now)) + self._interval_s
        wait_s = at - now - 60
        if wait_s > 0:
            raise Refused(
                429,
                "rate_limited",
                "Over the limit of wrong tokens a minute from this address. Check the token first.",
                retry_after_s=wait_s,
                should_retry=False,
            )
        self._forgotten_at[address] = at
        self._forgotten_at.move_to_end(address)
        if len(self._forgotten_at) > MOST_ADDRESSES:
            self._forgotten_at.popitem(last=False)


def _credential(headers: Mapping[str, str]) -> str:
    """What was sent as `Authorization: Bearer`."""
    if isinstance(headers, MultiMapping):
        values: Sequence[str] = headers.getall("Authorization", [])
    else:
        values = [headers["Authorization"]] if "Authorization" in headers else []
    if not values or (len(values) == 1 and values[0].strip().lower() in ("", "bearer")):
        raise Refused(401, "token_missing", "No token was sent. Send one header: `Authorization: Bearer YOUR_TOKEN`.")
    scheme, _, credential = values[0].partition(" ")
    sound = len(values) == 1 and len(values[0]) <= LONGEST_CREDENTIAL and values[0].isascii()
    if not sound or scheme.lower() != "bearer":
        raise invalid_token()
    return credential.strip(" ")


def _name(exchange: Exchange, token_id: str) -> None:
    exchange.token_id = token_id
    exchange.account = token_id.rpartition("-")[0]


def _address(peer: str) -> IPv4Address | IPv6Address | None:
    try:
        address = ip_address(peer)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _within(peer: str, networks: Sequence[str]) -> bool:
    address = _address(peer)
    return address is not None and any(address in ip_network(network) for network in networks)


def _neighbourhood(peer: str) -> str:
    """What one caller can change at will is taken off: all of an IPv6 /64 counts as one address."""
    address = _address(peer)
    return address.packed[:8].hex() if isinstance(address, IPv6Address) else str(address)
