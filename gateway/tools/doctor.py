"""A diagnosis from the caller's side: why requests do not reach the gateway or fail, found with few and cheap requests.

The checks run in the order in which things go wrong: base address, network, the answer below the base address, token, model, and
finally one minimal streaming request. The token is sent only to a server that has shown itself to be a gateway: an error of the
gateway has the id of its request, a UUID of version 7, and its list of models names the gateway. Both are in the body, because
proxies replace headers.
"""

from __future__ import annotations

import json
import os
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final, Literal

import aiohttp
import msgspec
from aiohttp import ClientError, ClientResponse, ClientSession, ClientTimeout, TCPConnector
from yarl import URL

from gateway.base.errors import Misconfigured
from gateway.base.ids import is_request_id
from gateway.config.authorities import trusting
from gateway.tools.channel_test import shown

MAX_TOKENS: Final = 16
CONNECT_S: Final = 10
ANSWER_S: Final = 30
"""How long to wait for the answer to a request that costs nothing."""
SILENCE_S: Final = 120
"""How long to wait for the next piece of the answer: longer than the gateway waits for an upstream by default."""
MOST_BYTES: Final = 4 << 20
MOST_NAMES: Final = 20
"""Models that are named where the one that was asked for does not exist."""

WHOLE_ADDRESS: Final = "Give the whole base address, as in https://host/v1."
QUOTE_THE_ID: Final = "Quote the request id to the operator."


class Diagnosis(msgspec.Struct, frozen=True):
    """The result of one check. `code` names it for scripts. `remedy` says what to do where the verdict is not `well`."""

    subject: str
    verdict: Literal["well", "ill", "note"]
    text: str
    remedy: str = ""
    code: str = ""


def well(subject: str, text: str) -> Diagnosis:
    """Return the result of a check that passed."""
    return Diagnosis(subject, "well", text)


def ill(subject: str, code: str, text: str, remedy: str) -> Diagnosis:
    """Return the result of a check that failed: later ones depend on it."""
    return Diagnosis(subject, "ill", text, remedy, code)


def note(subject: str, code: str, text: str, remedy: str) -> Diagnosis:
    """Return the result of a check that found something which may be wrong."""
    return Diagnosis(subject, "note", text, remedy, code)


class HttpAnswer(msgspec.Struct, frozen=True):
    """An answer as it came. `headers` is case-insensitive."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def error(self) -> dict[str, Any] | None:
        """The error of the gateway; None where this is no error, or not one of the gateway."""
        error = _object(self.body).get("error")
        if not isinstance(error, dict) or not error.keys() >= {"message", "type", "param", "code", "request_id"}:
            return None
        return error if is_request_id(error["request_id"]) else None

    @property
    def models(self) -> list[str] | None:
        """The names of the models in the gateway's list; None where this is not its list."""
        entries = _object(self.body).get("data")
        if self.status != 200 or not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            return None
        if any(entry.get("owned_by") != "sluicegate" for entry in entries):
            return None
        if not entries and not is_request_id(self.headers.get("x-request-id")):
            return None
        return [str(entry.get("id")) for entry in entries]


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
    timeout = ClientTimeout(total=ANSWER_S, sock_connect=CONNECT_S)
    async with ClientSession(timeout=timeout, connector=TCPConnector(ssl=tls), trust_env=True) as session:
        try:
            without = await _models(session, base)
            yield well("network", f"{_at(base)} answers{' over TLS' if base.scheme == 'https' else ''}")
            yield _gateway(base, without)
            if not token.isascii() or not token.isprintable() or " " in token:
                remedy = "Copy it again, without spaces, line ends, quotes or the word Bearer."
                yield ill("token", "token_malformed", "the token has characters that no token has", remedy)
                return
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            listed = await _models(session, base, headers) if token else without
            yield _token(listed, without, base, token)
            yield _model(listed.models or [], model)
            yield await _request(session, base, headers, model, max_tokens)
        except (ClientError, OSError, TimeoutError) as error:
            yield unreached(base, error)


def parsed(base_url: str) -> tuple[URL, Diagnosis]:
    """Return the address, and what is wrong with it. Of one that is no base address, an empty URL is returned."""
    text = base_url.strip()
    part = shown(text.rpartition("@")[2], 80)  # without a password
    try:
        url = URL(text)
        host, port = url.host or "", url.port
        host.encode("idna")
    except ValueError:  # also what cannot be a name in the DNS
        return URL(), ill("address", "address_invalid", f"`{part}` is not an http address", WHOLE_ADDRESS)
    if url.scheme not in ("http", "https") or not host or not port or not text.isprintable() or " " in text:
        return URL(), ill("address", "address_invalid", f"`{part}` is not an http address", WHOLE_ADDRESS)
    if url.user is not None or url.password is not None or url.query_string or url.fragment:
        remedy = f"Remove the user, the query or the fragment. {WHOLE_ADDRESS}"
        return URL(), ill("address", "address_invalid", "the address has more than a base address", remedy)
    if not url.path.rstrip("/").endswith("/v1"):
        return url, note(
            "address",
            "address_without_v1",
            "the path does not end in /v1",
            "Add /v1, and leave out what clients add themselves, unless a proxy does that.",
        )
    return url, well("address", f"{shown(str(url))} ends in /v1")


def trust_of(ca: Path) -> ssl.SSLContext:
    """Return what trusts the authorities in a file, and not the system's. Raises `Misconfigured` for a file without any."""
    try:
        return trusting(ca)
    except OSError as error:  # also what ssl raises
        reason = "it has no certificate in PEM" if isinstance(error, ssl.SSLError) else error.strerror
        raise Misconfigured(f"--ca {ca}: {reason}; give the certificates of the authority, as PEM") from None


def unreached(url: URL, error: Exception) -> Diagnosis:
    """Return why a request got no answer."""
    match error:
        case aiohttp.ClientHttpProxyError() | aiohttp.ClientProxyConnectionError():
            code, text = "proxy_of_environment", "is not reached: the proxy of the environment refuses the connection"
            remedy = f"Correct HTTP_PROXY or HTTPS_PROXY, or add {url.host} to NO_PROXY."
        case aiohttp.ClientConnectorCertificateError():
            reason = shown(str(getattr(error.certificate_error, "verify_message", error.certificate_error)))
            code, text = "certificate", f"has a certificate that is not accepted ({reason})"
            remedy = (
                "Check the name in the address and the clock of this machine. If a private authority issued it, pass its "
                "certificate: --ca FILE; clients take it from SSL_CERT_FILE, REQUESTS_CA_BUNDLE or NODE_EXTRA_CA_CERTS."
            )
        case aiohttp.ClientConnectorError():
            number = error.os_error.errno or 0
            reason = os.strerror(number) if number > 0 else shown(str(error.os_error))
            code, text = "unreachable", f"cannot be reached: {reason}"
            remedy = "Check http or https, host and port, the network, and that the gateway or its proxy runs."
        case _:
            late = isinstance(error, TimeoutError)
            code, text = "no_answer", "does not answer in time" if late else "closes the connection without an answer"
            remedy = "Check http or https, the port, and that no proxy or firewall closes the connection."
    return ill("network", code, f"{_at(url)} {text}", f"Nothing reached the gateway. {remedy}")


async def _models(session: ClientSession, base: URL, headers: dict[str, str] | None = None) -> HttpAnswer:
    async with session.get(base / "models", headers=headers, allow_redirects=False) as response:
        return await _received(response)


async def _received(response: ClientResponse) -> HttpAnswer:
    """Read a whole answer, or as much of it as the gateway would send."""
    body = bytearray()
    async for piece in response.content.iter_any():
        body += piece
        if len(body) > MOST_BYTES:
            break
    return HttpAnswer(response.status, response.headers, bytes(body))


def _gateway(base: URL, answer: HttpAnswer) -> Diagnosis:
    """Return whether a gateway answers below the base address, by the answer to a request without a token."""
    if answer.error is None and answer.models is None:
        return _stranger("gateway", answer, base)
    error = answer.error or {}
    message = shown(str(error.get("message")))
    if error.get("code") == "unknown_path":
        remedy = "Add /v1 to the base address; or a proxy changes the path: let its operator pass it on from /v1 on."
        return ill("gateway", "path_changed", f"a gateway got another path than /v1/models: {message}", remedy)
    if answer.status == 503:
        text = f"the gateway answers that it cannot serve now: {message}"
        return ill("gateway", "not_ready", text, "Retry shortly; tell the operator if it persists.")
    return well("gateway", f"a gateway answers below {shown(str(base))}")


def _stranger(subject: str, answer: HttpAnswer, base: URL) -> Diagnosis:
    """Return the verdict on an answer that is not the gateway's, with what tells who gave it."""
    by = [f"status {answer.status}"]
    by += [f"{name} {shown(answer.headers[name], 60)}" for name in ("Server", "Via") if name in answer.headers]
    if 300 <= answer.status < 400 and "Location" in answer.headers:
        by.append(f"redirects to {shown(answer.headers['Location'].partition('?')[0])}")
    remedy = "Open the address in a browser: a login page, a firewall or another service may be in front."
    if answer.status >= 500:
        remedy = (
            "Ask the operator whether the gateway runs, and whether the proxy has its address and waits long enough."
        )
    return ill(subject, "other_service", f"something else answers at {_at(base)} ({', '.join(by)})", remedy)


def _failed(subject: str, answer: HttpAnswer, base: URL) -> Diagnosis:
    """Return what an answer says that is not the expected one: an error of the gateway, or an answer of something else."""
    error = answer.error
    if error is None:
        return _stranger(subject, answer, base)
    code, message = shown(str(error["code"])), shown(str(error["message"]), 1000)
    return ill(subject, code, f"{answer.status} {code}: {message} (request {error['request_id']})", QUOTE_THE_ID)


def _token(listed: HttpAnswer, without: HttpAnswer, base: URL, token: str) -> Diagnosis:
    """Return whether the token is accepted, by the answers with and without it."""
    error = listed.error
    if token and error is not None and error["code"] == "token_missing":
        text = f"the token was sent, and the gateway got none (request {error['request_id']})"
        remedy = "A proxy on the way removes the header Authorization: let its operator pass it on."
        return ill("token", "authorization_removed", text, remedy)
    if listed.models is None:
        return _failed("token", listed, base)
    if without.models is not None:
        return well("token", "this gateway, or a proxy in front of it, asks callers for no token")
    return well("token", "the token is accepted, its account is active")


def _model(names: list[str], model: str) -> Diagnosis:
    if model in names:
        return well("model", f"{shown(model)} may be used")
    text = f"there is no model `{shown(model)}` for this account"
    more = f", and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    remedy = f"Use one of: {', '.join(map(shown, names[:MOST_NAMES]))}{more}."
    return ill("model", "model_unknown", text, remedy if names else "This account may use none: ask the operator.")


async def _request(
    session: ClientSession, base: URL, headers: dict[str, str], model: str, max_tokens: int
) -> Diagnosis:
    """Send one streaming request, and return how its answer came."""
    prompt = "Say hello" if max_tokens < 100 else "Write a long story"
    body = {"model": model, "stream": True, "max_tokens": max_tokens, "messages": [{"role": "user", "content": prompt}]}
    timeout = ClientTimeout(sock_connect=CONNECT_S, sock_read=SILENCE_S)
    began, first_s, received, request_id = time.monotonic(), 0.0, b"", "unknown"
    why = "the connection was closed"
    try:
        async with session.post(
            base / "chat/completions", json=body, headers=headers, allow_redirects=False, timeout=timeout
        ) as response:
            if response.status != 200 or response.content_type != "text/event-stream":
                return _failed("request", await _received(response), base)
            request_id = shown(response.headers.get("x-request-id", "unknown"), 60)
            async for piece in response.content.iter_any():
                first_s = first_s or time.monotonic() - began
                received += piece
    except TimeoutError:
        why = "nothing came for long"
    except (ClientError, OSError):
        pass
    took_s, named = time.monotonic() - began, f"(request {request_id})"
    if error := _error_in(received):
        text = f"the answer broke off: {shown(str(error.get('message')), 1000)} {named}"
        return ill("request", shown(str(error.get("code"))), text, QUOTE_THE_ID)
    if b"data: [DONE]" in received:
        return well(
            "request",
            f"the answer is complete, its first event came after {first_s:.1f} s, its end after {took_s:.1f} s {named}",
        )
    remedy = (
        "Ask the operator for `gateway trace ID`: where the gateway sent the answer whole, or saw its caller leave, a proxy on the "
        "way cut it (nginx: proxy_read_timeout)."
    )
    return ill("request", "cut", f"the answer is not whole after {took_s:.1f} s: {why} {named}", remedy)


def _error_in(received: bytes) -> dict[str, Any]:
    """Return the error event of a stream; empty where it has none."""
    events = [line for line in received.split(b"\n") if line.startswith(b'data: {"error"')]
    error = _object(events[-1].removeprefix(b"data: ")).get("error") if events else None
    return error if isinstance(error, dict) else {}


def _object(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _at(url: URL) -> str:
    """Return host and port."""
    return shown(f"{url.host}:{url.port}")
