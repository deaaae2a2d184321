"""The head that every request to an upstream begins with: one for each credential, made once."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote

from yarl import URL

from gateway.chat.dialect import Dialect
from gateway.config.channel import Channel
from gateway.config.channel_request import BEARER, Auth, auth_of

CHAT_PATH = "/chat/completions"

_COMMON: Mapping[str, str] = {
    "Content-Type": "application/json",
    "Accept-Encoding": "identity",
    "User-Agent": "sluicegate",
}


def address_of(channel: Channel, dialect: Dialect | None) -> URL:
    """Return the address that a channel's requests go to, without what `query` adds."""
    return URL(channel.base_url.rstrip("/") + (CHAT_PATH if dialect is None else dialect.path))


def auth_of_channel(channel: Channel, dialect: Dialect | None) -> Auth:
    """Return where the credentials of a channel go: as it says itself, else as its dialect does."""
    return channel.auth_way(BEARER if dialect is None else auth_of(dialect.auth))


def headers_and_query(
    channel: Channel, dialect: Dialect | None, credential: str
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the headers of requests with a credential, without those that differ from request to request, and the query."""
    auth, query = auth_of_channel(channel, dialect), dict(channel.query)
    given = {**_COMMON, **({} if dialect is None else dialect.headers)}
    own = {name.lower() for name in channel.headers}
    headers = {name: value for name, value in given.items() if name.lower() not in own} | dict(channel.headers)
    if credential and auth.way == "query":
        query[auth.name] = credential
    elif credential:
        headers[auth.name] = f"{'Bearer ' if auth.way == 'bearer' else ''}{credential}"
    return headers, query


def heads(channel: Channel, dialect: Dialect | None, target: str, host: str, proxy_login: str) -> dict[str, bytes]:
    """Return the head by credential, without the headers that differ from request to request.

    `target`: the address as the request line has it, without a query. `proxy_login`: the value of `Proxy-Authorization`, if any.
    """
    found: dict[str, bytes] = {}
    for credential in channel.credentials or ("",):
        headers, query = headers_and_query(channel, dialect, credential)
        if proxy_login:
            headers["Proxy-Authorization"] = proxy_login
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        pairs = "&".join(f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in query.items())
        found[credential] = f"POST {target}{'?' if pairs else ''}{pairs} HTTP/1.1\r\nHost: {host}\r\n{lines}".encode(
            "latin-1"
        )
    return found
