"""Login: the session that a one-time link began, or the header of a proxy that is trusted, says who looks at the pages.

A caller may also sign in with a token of its own, to look, and to disable that token: a leaked one must not make others.

A session ends twelve hours after it began, at leaving, and with the token that made its link: a management token that was revoked
or has expired, or an admin token that was changed; or with the caller's own. It is in the store under a digest of the cookie, so
that nobody enters with what is read there.
"""

from __future__ import annotations

import hmac
import secrets
import time
import warnings
from collections.abc import Callable, Iterable
from hashlib import sha256
from typing import Final

import msgspec
from aiohttp import web
from aiohttp_session import AbstractStorage, Session, get_session, new_session

from gateway.admin.actions.action import Actor, Scope
from gateway.admin.actions.links import Ticket, proof_of, redeem, ticket_of
from gateway.admin.actions.management_tokens import ManagementTokens, is_accepted
from gateway.base.addresses import address_of, network
from gateway.base.errors import Refused
from gateway.base.leaky_buckets import LeakyBuckets
from gateway.chain.services import Store
from gateway.config.schema import AdminSso, Config
from gateway.server.trusted_proxies import TrustedProxies
from gateway.store.client.client import Client
from gateway.store.tokens import invalid_token

LONGEST_NAME: Final = 128
OWN: Final = "/my"
"""The path of a caller's own pages."""
OWN_SCOPES: Final = frozenset((Scope.READ, Scope.TOKENS))
"""What the actions of a caller's pages need. The pages name its account alone."""
ELSEWHERE: Final = "This link is for operators, and this address for callers: open it at the operator's port."
TOO_LATE: Final = "This link was used before, or is older than ten minutes, or its maker may no longer make any."

INSECURE: Final = "A token is taken over TLS alone, which the proxy in front says, or from this machine."
MOST_WRONG: Final = 10
"""Wrong tokens in a minute from one address that are answered by 401; more get 429."""

LONGEST_S: Final = 12 * 3600
"""The life of a session, from entering on. Nothing makes it longer."""


warnings.filterwarnings("ignore", category=web.NotAppKeyWarning, module="aiohttp_session")  # its own keys


class User(msgspec.Struct, frozen=True):
    """Who looks at a page. `form`: what its forms must send back. `name`: what the pages call who looks.

    `account`: of a caller, who sees the pages of this account and no others; empty for an operator.
    """

    actor: Actor
    form: str
    name: str
    account: str = ""
    by_header: bool = False
    token: str = ""
    """The id of the token of its own that a caller has signed in with: then it only looks."""


class Login:
    """Identifies the user of a request, begins sessions and ends them."""

    def __init__(
        self, store: Store, config: Callable[[], Config], admin_token: Callable[[], str], *, operators: bool = True
    ) -> None:
        """`config` returns what is served at the moment, and `admin_token` the token that is accepted at the moment.

        Without `operators`, only callers are let in.
        """
        self._operators = operators
        self._store = store
        self._wrong = LeakyBuckets(MOST_WRONG)
        self._client = store.client
        self._tokens = ManagementTokens(store.client)
        self._config = config
        self._admin_token = admin_token

    async def user(self, request: web.Request) -> User | None:
        """Return who sent a request, or None for somebody who has not entered.

        Raises `Refused` (403) for a sign-on by header that is not allowed, and `StoreAway`.
        """
        sso = self._config().admin_sso
        if sso is not None and sso.header in request.headers:
            return self._signed_on(request, sso)
        session = await get_session(request)
        return None if session.empty else await self._of_session(session)

    async def enter(self, request: web.Request, text: str) -> str:
        """Begin a session with a ticket, and return the path that it leads to.

        Raises `Refused` (403) for one that lets nobody in here, and `StoreAway`.
        """
        if not self._operators and (known := await ticket_of(self._client, text)) and not known.account:
            raise Refused(403, "link_invalid", ELSEWHERE)
        ticket = await redeem(self._client, text)
        if ticket is None or not await self._is_good(text, ticket.token, ticket.proof):
            raise Refused(403, "link_invalid", TOO_LATE)
        identity = new_identity()
        proof = "" if ticket.token else proof_of(identity, self._admin_token())
        await self._begin(request, identity, ticket, proof)
        return OWN if ticket.account else "/"

    async def sign_in(self, request: web.Request, text: str) -> str:
        """Begin a session with the text of a caller's own token, and return the path that it leads to.

        Raises `Refused` (401, 403, 429), and `StoreAway`.
        """
        if not self.takes_tokens(request):
            raise Refused(403, "sign_on_refused", INSECURE)
        peer = TrustedProxies(self._config().port.trusted_proxies).caller_of(request.remote or "", request.headers)
        try:
            known = await self._store.tokens.authenticate(text)
            if known.token.addresses and not _is_in(peer, known.token.addresses):
                raise invalid_token()
        except Refused as refused:
            if wait_s := self._wrong.add(peer):
                words = "Too many wrong tokens came from your address: wait, then try again."
                raise Refused(429, "rate_limited", words, retry_after_s=wait_s) from None
            raise Refused(401, refused.code, "This token is not accepted here.") from None
        identity = new_identity()
        ticket = Ticket(known.account.id, (), "", "", known.account.id)
        await self._begin(request, identity, ticket, proof_of(identity, self._admin_token()), known.token.id)
        return OWN

    def takes_tokens(self, request: web.Request) -> bool:
        """Return whether a caller may sign in with a token: at its own port, where nobody between can read the token."""
        peer = address_of(request.remote or "")
        here = peer is not None and peer.is_loopback and "X-Forwarded-For" not in request.headers
        return not self._operators and (here or self._came_by_tls(request))

    async def leave(self, request: web.Request) -> None:
        """End the session."""
        (await get_session(request)).invalidate()

    def is_trusted(self, request: web.Request) -> bool:
        """Return whether a request came from a proxy that may say who has signed on."""
        sso = self._config().admin_sso
        return sso is not None and _is_in(request.remote or "", sso.from_)

    def is_secure(self, request: web.Request) -> bool:
        """Return whether a request came by TLS, as far as the file or a trusted proxy says so."""
        portal = None if self._operators else self._config().portal
        return self._came_by_tls(request) or (portal is not None and portal.url.startswith("https:"))

    def _came_by_tls(self, request: web.Request) -> bool:
        trusted = self.is_trusted(request) or _is_in(request.remote or "", self._config().port.trusted_proxies)
        return request.secure or (trusted and request.headers.get("X-Forwarded-Proto") == "https")

    async def _begin(
        self, request: web.Request, identity: str, ticket: Ticket, proof: str, own_token: str = ""
    ) -> None:
        session = await new_session(request)
        session.set_new_identity(identity)
        session.update(
            name=ticket.name,
            maker=ticket.maker,
            scopes=[str(scope) for scope in ticket.scopes],
            token=ticket.token,
            proof=proof,
            until=time.time() + LONGEST_S,
            form=secrets.token_urlsafe(24),
            account=ticket.account,
            own_token=own_token,
        )

    async def _of_session(self, session: Session) -> User | None:
        if time.time() >= session["until"]:
            return None
        if not await self._is_good(str(session.identity), session["token"], session["proof"]):
            session.invalidate()
            return None
        if account := session.get("account", ""):
            if (own := session.get("own_token", "")) and not await self._is_accepted(own):
                session.invalidate()
                return None
            scopes = {Scope.READ} if own else OWN_SCOPES
            actor = Actor(
                f"page of account {account}{f' by token {own}' if own else ''}", scopes, session["token"], account
            )
            return User(actor, session["form"], f"account {account}", account, token=own)
        maker, name = session.get("maker", ""), session["name"]
        # The maker first, who cannot be invented: a link has any name.
        actor = Actor(
            f"page by link of {maker}{f' for {name}' if name else ''}",
            frozenset(map(Scope, session["scopes"])),
            session["token"],
        )
        return User(actor, session["form"], name or maker)

    async def _is_accepted(self, token: str) -> bool:
        try:
            await self._store.tokens.look(token.rpartition("-")[0], token)
        except Refused:
            return False
        return True

    async def _is_good(self, secret: str, token_id: str, proof: str) -> bool:
        """Return whether the token that made a link or a session is still accepted."""
        if not token_id:
            return hmac.compare_digest(proof, proof_of(secret, self._admin_token()))
        token = await self._tokens.get(token_id)
        return token is not None and is_accepted(token)

    def _signed_on(self, request: web.Request, sso: AdminSso) -> User:
        """Return whom a proxy has signed on. The gateway keeps no session: the proxy's is the one that ends."""
        if not self.is_trusted(request):
            raise Refused(403, "sign_on_refused", f"`{sso.header}` is not believed from your address.")
        names = request.headers.getall(sso.header)
        name = names[0].strip()
        if len(names) != 1 or not name or len(name) > LONGEST_NAME or not name.isprintable():
            raise Refused(403, "sign_on_refused", f"`{sso.header}` is not one name of up to {LONGEST_NAME} characters.")
        scopes = frozenset(map(Scope, sso.scopes_of(name)))
        if not scopes:
            raise Refused(403, "sign_on_refused", "You have signed on, and have no scopes here: ask for some.")
        form = proof_of(f"form of {name}", self._admin_token())
        return User(Actor(f"page by {sso.header} of {name}", scopes), form, name, by_header=True)


def _is_in(peer: str, networks: Iterable[str]) -> bool:
    address = address_of(peer)
    return address is not None and any(address in network(each) for each in networks)


class StoreStorage(AbstractStorage):
    """Keeps the sessions of `aiohttp_session` by the gateway's own client, which knows clusters and fails within its timeout."""

    def __init__(self, client: Client, cookie: str, is_secure: Callable[[web.Request], bool]) -> None:
        """`cookie`: its name. `is_secure` tells of a request whether it came by TLS, so that the cookie may not leave without."""
        super().__init__(cookie_name=cookie, max_age=LONGEST_S, httponly=True, samesite="Strict")
        self._client = client
        self._is_secure = is_secure

    async def load_session(self, request: web.Request) -> Session:
        """Return the session of the request's cookie, or a new one. Raises `StoreAway`."""
        cookie = self.load_cookie(request)
        raw = None if cookie is None else await self._client.call("GET", _key(cookie))
        if raw is None:
            return Session(None, data=None, new=True, max_age=LONGEST_S)
        return Session(cookie, data=msgspec.json.decode(raw), new=False, max_age=LONGEST_S)

    async def save_session(self, request: web.Request, response: web.StreamResponse, session: Session) -> None:
        """Keep a new session, or forget one that is empty. Raises `StoreAway`."""
        if session.empty:
            if session.identity is not None:
                await self._client.call("DEL", _key(session.identity))
            response.del_cookie(self.cookie_name, path="/", httponly=True, samesite="Strict")
            return
        identity = str(session.identity)
        data = msgspec.json.encode(self._get_session_data(session))
        await self._client.call("SET", _key(identity), data, "EX", LONGEST_S)
        response.set_cookie(
            self.cookie_name,
            identity,
            max_age=LONGEST_S,
            path="/",
            secure=self._is_secure(request),
            httponly=True,
            samesite="Strict",
        )


def new_identity() -> str:
    """Return what a cookie has of a session: 256 random bits."""
    return secrets.token_urlsafe(32)


def _key(identity: str) -> str:
    return f"gw:{{pages}}:session:{sha256(identity.encode('utf-8', 'surrogateescape')).hexdigest()}"
