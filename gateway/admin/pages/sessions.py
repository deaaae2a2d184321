"""Sessions: in the store under a digest of the cookie, so that nobody enters with what is read there."""

from __future__ import annotations

import secrets
import warnings
from collections.abc import Callable
from hashlib import sha256
from typing import Final

import msgspec
from aiohttp import web
from aiohttp_session import AbstractStorage, Session

from gateway.store.client.client import Client

LONGEST_S: Final = 12 * 3600
"""The life of a session, from entering on. Nothing makes it longer."""


warnings.filterwarnings("ignore", category=web.NotAppKeyWarning, module="aiohttp_session")  # its own keys


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
