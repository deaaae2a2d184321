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


def heads(channel: Channel, dialect: Dialect | None, target: str, host: str, proxy_login: str) -> dict[str, bytes]:
    """Return the head by credential, without the headers that differ from request to request.

    `target`: the address as the request line has it, without a query. `proxy_login`: the value of `Proxy-Authorization`, if any.
    """
    auth = auth_of_channel(channel, dialect)
    given = {**_COMMON, **({} if dialect is None else dialect.headers)}
    own = {name.lower() for name in channel.headers}
    headers = {name: value for name, value in given.items() if name.lower() not in own} | dict(channel.headers)
    if proxy_login:
        headers["Proxy-Authorization"] = proxy_login
    return {
        credential: _head(target, host, headers, channel.query, auth, credential)
        for credential in channel.credentials or ("",)
    }


def _head(
    target: str, host: str, headers: Mapping[str, str], query: Mapping[str, str], auth: Auth, credential: str
) -> bytes:
    parameters, lines = dict(query), [f"{name}: {value}\r\n" for name, value in headers.items()]
    if credential and auth.way == "query":
        parameters[auth.name] = credential
    elif credential:
        lines.append(f"{auth.name}: {'Bearer ' if auth.way == 'bearer' else ''}{credential}\r\n")
    pairs = "&".join(f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in parameters.items())
    return f"POST {target}{'?' if pairs else ''}{pairs} HTTP/1.1\r\nHost: {host}\r\n{''.join(lines)}".encode("latin-1")
