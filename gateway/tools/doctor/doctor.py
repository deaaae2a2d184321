"""A diagnosis from the caller's side: why requests do not reach the gateway or fail, found with few and cheap requests.

The checks run in the order in which things go wrong: base address, network, the answer below the base address, token, model, and
finally one minimal streaming request. The token is sent only to a server that has shown itself to be a gateway. The base address
that a client is given is looked at before anything is sent there.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from difflib import get_close_matches
from pathlib import Path
from typing import Final

from aiohttp import ClientError, ClientSession, ClientTimeout, TCPConnector
from yarl import URL

from gateway.tools.channel_test import Diagnosis, ill, note, shown, well
from gateway.tools.doctor.network import (
    ANSWER_S,
    CONNECT_S,
    at,
    other_scheme,
    trust_of,
    unreached,
)
from gateway.tools.doctor.request import HttpAnswer, failed, received, request, stranger

MAX_TOKENS: Final = 16
ADMIN_PORT: Final = "Send the admin token"
"""What only the admin port says."""
MOST_NAMES: Final = 20
"""Models that are named where the one that was asked for does not exist."""

REMEDY_FOR_COPY: Final = "Copy it again, without spaces, line ends, quotes or the word Bearer."

BASE: Final = re.compile(r"(/v1)+(/chat/completions|/completions|/responses|/embeddings|/messages|/models|/account)?$")
"""The end of a path up to which it is a base address, with what clients add themselves."""


async def diagnose(
    base_url: str, token: str, model: str, *, ca: Path | None = None, max_tokens: int = MAX_TOKENS
) -> AsyncIterator[Diagnosis]:
    """Yield one diagnosis after another, and stop after the first that is `ill`: later checks depend on it.

    `ca`: the certificates of a private authority. `max_tokens`: of the answer to the streaming request. Raises `Misconfigured`
    for a file that has no certificates.
    """
    tls = True if ca is None else trust_of(ca)
    async with aclosing(_checks(base_url, token.strip(), model, tls, max_tokens)) as checks:
        async for diagnosis in checks:
            yield diagnosis
            if diagnosis.verdict == "ill":
                return


async def _checks(
    base_url: str, token: str, model: str, tls: ssl.SSLContext | bool, max_tokens: int
) -> AsyncGenerator[Diagnosis, None]:
    base, address = parsed(base_url)
    yield address
    if address.verdict == "ill":
        return
    timeout = ClientTimeout(total=ANSWER_S, sock_connect=CONNECT_S)
    async with ClientSession(timeout=timeout, connector=TCPConnector(ssl=tls), trust_env=True) as session:
        try:
            without = await _models(session, base)
            yield well("network", f"{at(base)} answers{' over TLS' if base.scheme == 'https' else ''}")
            yield await _gateway(session, base, without)
            if not token.isascii() or not token.isprintable() or " " in token:
                yield ill("token", "token_malformed", "the token has characters that no token has", REMEDY_FOR_COPY)
                return
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            listed = await _models(session, base, headers) if token else without
            yield _token(listed, without, base, token)
            yield _model(listed.models or [], model)
            yield await request(session, base, headers, model, max_tokens)
        except (ClientError, OSError, TimeoutError) as error:
            yield await unreached(base, error)


async def _models(session: ClientSession, base: URL, headers: dict[str, str] | None = None) -> HttpAnswer:
    async with session.get(base / "models", headers=headers, allow_redirects=False) as response:
        return await received(response)


async def _gateway(session: ClientSession, base: URL, answer: HttpAnswer) -> Diagnosis:
    """Return whether a gateway answers below the base address, by the answer to a request without a token."""
    ends_in_v1 = base.path.rstrip("/").endswith("/v1")
    if not answer.is_of_gateway:
        if not ends_in_v1 and (await _models(session, base / "v1")).is_of_gateway:
            return _lacks_v1(base, "a gateway answers one level below")
        scheme = await other_scheme(base) if answer.status == 400 else None  # what a port with TLS says to plain HTTP
        return scheme or stranger("gateway", answer, base / "models")
    error = answer.error or {}
    message = shown(str(error.get("message")))
    if ADMIN_PORT in message:
        remedy = "Use the address of the public port: `listen:` in the configuration, and not `admin:`."
        return ill("address", "admin_port", "this is the port of the gateway's operator", remedy)
    if error.get("code") == "unknown_path":
        if not ends_in_v1:
            return _lacks_v1(base, f"the gateway answers: {message}")
        remedy = (
            "A proxy on the way changes the path: let its operator pass on the path without the prefix, from /v1 on (nginx: "
            "`location /ai/ { proxy_pass http://gateway/; }`)."
        )
        return ill(
            "gateway", "path_changed", f"a gateway answers, and got another path than /v1/models: {message}", remedy
        )
    if answer.status == 503:
        text = f"the gateway answers that it cannot serve now: {message}"
        return ill("gateway", "not_ready", text, "Retry shortly; tell the operator if it persists.")
    through = f", through {shown(answer.headers['Server'], 60)}" if "Server" in answer.headers else ""
    return well("gateway", f"a gateway answers below {shown(str(base))}{through}")


def _lacks_v1(base: URL, text: str) -> Diagnosis:
    remedy = f"Add /v1 to the base address: {shown(str(base / 'v1'))}"
    return ill("address", "address_lacks_v1", f"the path does not end in /v1; {text}", remedy)


def _token(listed: HttpAnswer, without: HttpAnswer, base: URL, token: str) -> Diagnosis:
    """Return whether the token is accepted, by the answers with and without it."""
    error = listed.error
    if token and error is not None and error["code"] == "token_missing":
        text = f"the token was sent, and the gateway got none (request {error['request_id']})"
        remedy = "A proxy on the way removes the header Authorization: let its operator pass it on."
        return ill("token", "authorization_removed", text, remedy)
    if listed.models is None:
        return failed("token", listed, base / "models")
    if without.models is not None:
        return well("token", "this gateway, or a proxy in front of it, asks callers for no token")
    return well("token", "the token is accepted, its account is active")


def _model(names: list[str], model: str) -> Diagnosis:
    if model in names:
        return well("model", f"{shown(model)} may be used")
    text = f"there is no model `{shown(model)}` for this account"
    if not names:
        return ill("model", "no_models", text, "This account may use no model: ask the operator.")
    similar = get_close_matches(model.lower(), [name.lower() for name in names], n=1)
    meant = next((f"Did you mean `{shown(name)}`? " for name in names if [name.lower()] == similar), "")
    more = f", and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return ill("model", "model_unknown", text, f"{meant}Use one of: {', '.join(map(shown, names[:MOST_NAMES]))}{more}.")


def parsed(base_url: str) -> tuple[URL, Diagnosis]:
    """Return the address, and what is wrong with it. Of one that is no address, an empty URL is returned."""
    text = base_url.strip()
    try:
        url = URL(text)
        host, port = url.host or "", url.port
        host.encode("idna")
    except ValueError:  # also what cannot be a name in the DNS
        return URL(), _no_address(text, "Check host and port: https://HOST:PORT/v1, the port from 1 to 65535.")
    if not text.isprintable() or " " in text:
        return URL(), _no_address(text, "Remove what is no part of an address, such as spaces.")
    if "://" not in text:
        return URL(), _no_address(text, _with_scheme(text))
    if url.scheme not in ("http", "https") or not host or not port:
        return URL(), _no_address(text, "Give the whole base address, as in https://host/v1.")
    return url, _check(url)


def _check(url: URL) -> Diagnosis:
    path = url.path.rstrip("/")
    base = BASE.sub("/v1", path)
    if url.user is not None or url.password is not None or url.query_string or url.fragment or base != path:
        text = "the address has more than a base address: a user, a query, or what clients add themselves"
        right = url.with_user(None).with_query(None).with_fragment(None).with_path(base)
        return ill("address", "address_has_more", text, f"Remove it: {shown(str(right))}")
    if not path.endswith("/v1"):
        text = "the path does not end in /v1"
        return note("address", "address_without_v1", text, "This is right only if a proxy adds /v1.")
    return well("address", f"{shown(str(url))} ends in /v1")


def _with_scheme(text: str) -> str:
    """Return what to do with an address that has no `://`."""
    rest = re.sub(r"^https?:/?", "", text)
    if not rest:
        return "Give the whole base address, as in https://host/v1."
    is_here = rest.startswith(("localhost", "127.", "[::1]"))
    return f"Write the scheme, too: {'http' if is_here or text.startswith('http:') else 'https'}://{shown(rest)}"


def _no_address(text: str, remedy: str) -> Diagnosis:
    part = shown(text.rpartition("@")[2], 80)  # without a password
    return ill("address", "address_invalid", f"`{part}` is not an http address", remedy)
