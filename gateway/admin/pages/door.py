"""The door: who looks at the pages, by a session that a one-time link began, or by the header of a proxy that is trusted.

A session ends twelve hours after it began, at leaving, and with the token that made its link: a management token that was revoked
or has expired, or an admin token that was changed.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Callable, Iterable
from typing import Final

import msgspec
from aiohttp import web
from aiohttp_session import Session, get_session, new_session

from gateway.addresses import address_of, network
from gateway.admin.pages.sessions import LONGEST_S, new_identity
from gateway.config.admin_sso import AdminSso
from gateway.config.schema import Config
from gateway.errors import Refused
from gateway.management.desk import Actor
from gateway.management.links import Ticket, proof_of, redeem, ticket_of
from gateway.management.operation import Scope
from gateway.services import Store
from gateway.store.management_tokens import ManagementTokens, is_accepted

LONGEST_NAME: Final = 128
OWN: Final = "/my"
"""The path of a caller's own pages."""
OWN_SCOPES: Final = frozenset((Scope.READ, Scope.TOKENS))
"""What the operations of a caller's pages need. The pages name its account alone."""
ELSEWHERE: Final = "This link is for operators, and this address for callers: open it at the operator's port."
TOO_LATE: Final = "This link was used before, or is older than ten minutes, or its maker may no longer make any."


class Visitor(msgspec.Struct, frozen=True):
    """Who looks at a page. `form`: what its forms must send back. `name`: what the pages call who looks.

    `account`: of a caller, who sees the pages of this account and no others; empty for an operator.
    """

    actor: Actor
    form: str
    name: str
    account: str = ""
    by_header: bool = False


class Door:
    """Finds out who looks, lets in and out."""

    def __init__(
        self, store: Store, config: Callable[[], Config], admin_token: Callable[[], str], *, operators: bool = True
    ) -> None:
        """`config` returns what is served at the moment, and `admin_token` the token that is accepted at the moment.

        Without `operators`, only callers are let in.
        """
        self._operators = operators
        self._client = store.client
        self._tokens = ManagementTokens(store.client)
        self._config = config
        self._admin_token = admin_token

    async def visitor(self, request: web.Request) -> Visitor | None:
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

    async def leave(self, request: web.Request) -> None:
        """End the session."""
        (await get_session(request)).invalidate()

    def is_trusted(self, request: web.Request) -> bool:
        """Return whether a request came from a proxy that may say who has signed on."""
        sso = self._config().admin_sso
        return sso is not None and _is_in(request.remote or "", sso.from_)

    def is_secure(self, request: web.Request) -> bool:
        """Return whether a request came by TLS, as far as a trusted proxy says so."""
        return request.secure or (self.is_trusted(request) and request.headers.get("X-Forwarded-Proto") == "https")

    async def _begin(self, request: web.Request, identity: str, ticket: Ticket, proof: str) -> None:
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
        )

    async def _of_session(self, session: Session) -> Visitor | None:
        if time.time() >= session["until"]:
            return None
        if not await self._is_good(str(session.identity), session["token"], session["proof"]):
            session.invalidate()
            return None
        if account := session.get("account", ""):
            actor = Actor(f"page of account {account}", OWN_SCOPES, session["token"], account)
            return Visitor(actor, session["form"], f"account {account}", account)
        maker, name = session.get("maker", ""), session["name"]
        # The maker first, who cannot be invented: a link has any name.
        actor = Actor(
            f"page by link of {maker}{f' for {name}' if name else ''}",
            frozenset(map(Scope, session["scopes"])),
            session["token"],
        )
        return Visitor(actor, session["form"], name or maker)

    async def _is_good(self, secret: str, token_id: str, proof: str) -> bool:
        """Return whether the token that made a link or a session is still accepted."""
        if not token_id:
            return hmac.compare_digest(proof, proof_of(secret, self._admin_token()))
        token = await self._tokens.get(token_id)
        return token is not None and is_accepted(token)

    def _signed_on(self, request: web.Request, sso: AdminSso) -> Visitor:
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
        return Visitor(Actor(f"page by {sso.header} of {name}", scopes), form, name, by_header=True)


def _is_in(peer: str, networks: Iterable[str]) -> bool:
    address = address_of(peer)
    return address is not None and any(address in network(each) for each in networks)
