"""Authenticates callers by the token in the header `Authorization`, or `x-api-key`.

1. The body is never read: requests are refused on their headers alone.
2. Unknown, wrong and malformed tokens all get the same answer. A malformed one costs no call of the store, nor does a header that
   is not `Bearer` and a token, whose answer says so.
3. A valid token is never refused or delayed because of wrong tokens from the same address.
4. The refusals of an address without an account, or of an account, are paced by `plugins.pacing`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from functools import partial
from ipaddress import ip_network
from typing import Any, Final

from multidict import MultiMapping

from gateway import (
    AccountStatus,
    AskedFor,
    Authenticated,
    Body,
    Caller,
    Declared,
    Exchange,
    LeakyBuckets,
    Plan,
    PlanPart,
    Plugin,
    Refused,
    Services,
    StalePlan,
    Step,
    TokenRefused,
    Tokens,
    address_of,
    invalid_token,
    network_of,
)
from plugins.pacing import PacedRefusals

MAX_CREDENTIAL: Final = 512
"""Characters of the header's value."""
KEY: Final = "x-api-key"
"""Anthropic's name of the header with the token, alone in it."""
MOST_NAMED: Final = 5
"""Tokens that an explanation names."""


class Auth(Plugin):
    """Accepts callers with a valid token whose account is active and whose group is enabled."""

    API = 1
    provides = (Caller,)

    wrong_tokens_per_minute: int = 60
    """Wrong tokens a minute from one address that are answered with 401; any more are answered with 429."""

    def __post_init__(self) -> None:
        if not 1 <= self.wrong_tokens_per_minute <= 1_000_000:
            raise ValueError("wrong_tokens_per_minute must be from 1 to 1000000")

    async def start(self, services: Services) -> None:
        """Take what the hooks need from the services."""
        self._tokens = services.store.tokens
        self._catalogue = services.catalogue
        self._wrong = LeakyBuckets(self.wrong_tokens_per_minute, monotonic=services.clock.monotonic)
        self._refusals = PacedRefusals()

    async def request_step(self, exchange: Exchange) -> Step | None:
        """Set `Caller`. Raises `Refused` if the token, its account or its group may not be used.

        Where this process has read the token before, the step checks that nothing has changed. Otherwise it is read now.
        """
        _forget(exchange)  # a plan that was stale may have set it
        try:
            credential = _credential(exchange.request.headers)
            known = self._tokens.known(credential)
            if known is not None and self._is_admitted(exchange, known):
                part = AuthPart(self, self._tokens, known, exchange[Caller])
                return part.request.step("", (), partial(part.read, exchange))
            await self._read(exchange, credential)
        except Refused:
            await self._refuse_later(exchange)
            raise
        return None

    async def changed(self, exchange: Exchange, known: Authenticated, reply: Any) -> bool:
        """Decide by the reply of a guard that found a difference. Return True: the plugins below must plan again."""
        _forget(exchange)
        now = self._tokens.now(known, reply)
        try:
            if isinstance(now, TokenRefused):
                self._note_refused(exchange, now)
                raise now
            self._admit(exchange, now)
        except Refused:
            await self._refuse_later(exchange)
            raise
        return True

    def _is_admitted(self, exchange: Exchange, known: Authenticated) -> bool:
        """Admit by what is known. A refusal must rest on what the store has now, so none is raised here."""
        try:
            self._admit(exchange, known)
        except Refused:
            return False
        return True

    async def _read(self, exchange: Exchange, credential: str) -> None:
        """Admit by what the store has now."""
        try:
            authenticated = await self._tokens.authenticate(credential)
        except TokenRefused as refused:
            self._note_refused(exchange, refused)
            raise
        self._admit(exchange, authenticated)

    async def _refuse_later(self, exchange: Exchange) -> None:
        await self._refusals.wait(exchange.account or f"address {network_of(exchange.request.peer)}")

    def _note_refused(self, exchange: Exchange, refused: TokenRefused) -> None:
        if refused.token is not None:
            _set_token(exchange, refused.token.id)
        self._count_wrong(exchange.request.peer)

    def _admit(self, exchange: Exchange, authenticated: Authenticated) -> None:
        token, account = authenticated.token, authenticated.account
        _set_token(exchange, token.id)
        exchange.group = account.group
        exchange[Authenticated] = authenticated
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
            limits=self._catalogue.limits(account.group, account.limits),
            token_limits=token.limits,
            budgets=self._catalogue.budgets(account.group, account.budgets),
            token_budgets=token.budgets,
            counts_as=token.counts_as,
        )

    def prepare(self, plan: Plan) -> PlanPart:
        """Return the part that admits a token which is known."""
        return AuthPart(self, self._tokens, plan[Authenticated], plan[Caller])

    async def explain(self, exchange: Exchange) -> str:
        """Do the same as `request_step`, without what is known: the token's last use is written at the end."""
        asked = exchange.get(AskedFor)
        if asked is not None and not asked.token_id:
            return await self._explain_account(exchange, asked.account)
        if asked is None:
            await self._read(exchange, _credential(exchange.request.headers))
        else:
            self._admit(exchange, await self._tokens.look(asked.account, asked.token_id))
        return f"token {exchange.token_id} of the active account {exchange.account}, group {exchange.group}"

    async def _explain_account(self, exchange: Exchange, account: str) -> str:
        """Admit an account as if by a token without restrictions, and say which tokens it has."""
        self._admit(exchange, await self._tokens.look(account))
        exchange.token_id = ""
        ids = [token.id for token in await self._tokens.all_of(account)]
        more = ", ..." if len(ids) > MOST_NAMED else ""
        tokens = f"which may restrict this further: {', '.join(ids[:MOST_NAMED])}{more}" if ids else "none yet"
        return f"the active account {account}, group {exchange.group}; its tokens, {tokens}"

    async def end_step(self, exchange: Exchange) -> Step | None:
        """Record that the token was used."""
        authenticated = exchange.get(Authenticated)
        return None if authenticated is None else self._tokens.touch_step(authenticated)

    def _count_wrong(self, peer: str) -> None:
        """Count one wrong token. Raises `Refused` (429) if there were too many from this address."""
        wait_s = self._wrong.add(network_of(peer))
        if wait_s > 0:
            raise Refused(
                429,
                "rate_limited",
                "Over the limit of wrong tokens a minute from this address. Check the token first.",
                retry_after_s=wait_s,
                should_retry=False,
            )


class AuthPart(PlanPart):
    """Checks that a token and its account are as they were, by the guard of `Tokens`."""

    def __init__(self, auth: Auth, tokens: Tokens, authenticated: Authenticated, caller: Caller) -> None:
        self._auth = auth
        self._tokens = tokens
        self._authenticated = authenticated
        self._caller = caller
        self._addresses = authenticated.token.addresses
        self.request: Declared = tokens.guard(authenticated)

    def fill(self, exchange: Exchange, body: Body) -> tuple[()] | None:
        known, caller = self._authenticated, self._caller
        if self._tokens.known(known.text) is not known:
            raise StalePlan
        if self._addresses and not _within(exchange.request.peer, self._addresses):
            return None
        exchange.token_id, exchange.account, exchange.group = caller.token_id, caller.account, caller.group
        facts = exchange.facts
        facts[Authenticated], facts[Caller] = known, caller
        return ()

    def read(self, exchange: Exchange, reply: Any) -> Awaitable[bool] | None:
        return None if reply == 1 else self._auth.changed(exchange, self._authenticated, reply)

    def fill_end(self, exchange: Exchange) -> tuple[()] | None:
        return () if self._tokens.touch_step(self._authenticated) is None else None


def _credential(headers: Mapping[str, str]) -> str:
    """Return the credential of `Authorization: Bearer`, or of `x-api-key`. Raises `Refused` if there is none, or more than one."""
    values, keys = _all(headers, "Authorization"), _all(headers, KEY)
    if keys:
        sent = [f"Bearer {keys[0].strip()}"]
        if len(keys) > 1 or values not in ([], sent):
            text = f"Two tokens were sent. Send one: `Authorization: Bearer YOUR_TOKEN`, or `{KEY}: YOUR_TOKEN`."
            raise Refused(401, "token_invalid", text)
        values = sent
    if not values or (len(values) == 1 and values[0].strip().lower() in ("", "bearer")):
        raise Refused(401, "token_missing", "No token was sent. Send one header: `Authorization: Bearer YOUR_TOKEN`.")
    scheme, _, credential = values[0].partition(" ")
    if len(values) > 1:
        raise _wrong_header("was sent more than once")
    if scheme.lower() != "bearer":
        raise _wrong_header("does not begin with `Bearer `")
    credential = credential.strip(" ")
    if " " in credential and credential.lower().startswith("bearer "):
        raise _wrong_header("has `Bearer` twice")
    if len(values[0]) > MAX_CREDENTIAL or not values[0].isascii():
        raise invalid_token()
    return credential


def _all(headers: Mapping[str, str], name: str) -> list[str]:
    if isinstance(headers, MultiMapping):
        return headers.getall(name, [])
    return [headers[name]] if name in headers else []


def _wrong_header(what: str) -> Refused:
    """Return the error for a header that cannot be read, whatever the token in it is. Nothing of it is repeated."""
    text = f"The header `Authorization` {what}. Send it once, with a space in it: `Authorization: Bearer YOUR_TOKEN`."
    return Refused(401, "token_invalid", text)


def _forget(exchange: Exchange) -> None:
    del exchange[Caller], exchange[Authenticated]
    exchange.account = exchange.token_id = exchange.group = ""


def _set_token(exchange: Exchange, token_id: str) -> None:
    exchange.token_id = token_id
    exchange.account = token_id.rpartition("-")[0]


def _within(peer: str, networks: Sequence[str]) -> bool:
    address = address_of(peer)
    return address is not None and any(address in ip_network(network) for network in networks)
