"""A diagnosis from the caller's side: why requests do not reach the gateway or fail, found with one cheap request.

The checks run in the order in which things go wrong: base address, network, what answers there, token, model, and finally one
minimal streaming request.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from typing import Any, Final, Literal
from urllib.request import getproxies, proxy_bypass

import msgspec
from aiohttp import ClientError, ClientResponse, ClientSession, ClientTimeout
from yarl import URL

TIMEOUT_S: Final = 30
BUFFERED_S: Final = 0.005
"""A stream that arrives whole within this time was buffered on the way, or its upstream is very fast."""

REMEDIES: Final = {
    401: "Copy the whole token again and send it as `Authorization: Bearer TOKEN`; ask the operator if it still fails.",
    402: "Check the balance and top it up, or lower max_tokens.",
    403: "Ask the operator about the account's status, its group, and the restrictions of this token.",
    404: "Check the name in the model catalogue: GET /v1/models.",
    429: "Send fewer requests at once, and retry with backoff after the time in Retry-After.",
    502: "The upstream failed: retry later or choose another model.",
    503: "Retry shortly, or choose another model.",
    504: "The upstream was too slow: retry later or choose another model.",
}


class Diagnosis(msgspec.Struct, frozen=True):
    """The result of one check. `remedy` says what to do where the verdict is not `well`."""

    subject: str
    verdict: Literal["well", "ill", "note"]
    text: str
    remedy: str = ""


async def diagnose(base_url: str, token: str, model: str) -> AsyncIterator[Diagnosis]:
    """Yield one diagnosis after another, and stop after the first that is `ill`: later checks depend on it."""
    url = URL(base_url)
    address = _address(url)
    yield address
    if address.verdict == "ill":
        return
    if (proxy := _proxy(url)) is not None:
        yield proxy
    async with ClientSession(timeout=ClientTimeout(total=TIMEOUT_S), trust_env=True) as session:
        for check in (_network, _token, _model, _request):
            try:
                diagnosis = await check(session, url, token, model)
            except (ClientError, OSError, TimeoutError) as error:
                diagnosis = _unreachable(url, error)
            yield diagnosis
            if diagnosis.verdict == "ill":
                return


def _address(url: URL) -> Diagnosis:
    path = url.path.rstrip("/")
    if url.scheme not in ("http", "https") or not url.host:
        return _ill("address", f"`{url}` is not an http address", "Give the whole base address, as in https://host/v1.")
    if path.endswith("/v1/v1"):
        return _ill("address", "the path repeats /v1", "Remove one /v1: the base address ends in /v1 once.")
    if path.endswith("/chat/completions"):
        return _ill("address", "the path names an operation", "Remove /chat/completions: clients add it themselves.")
    if not path.endswith("/v1"):
        return _ill("address", "the path does not end in /v1", "Add /v1 to the base address.")
    return Diagnosis("address", "well", f"{url} ends in /v1")


def _proxy(url: URL) -> Diagnosis | None:
    if url.scheme not in getproxies() or proxy_bypass(url.host or ""):
        return None
    text = f"the environment sends {url.scheme} requests through a proxy"
    return Diagnosis("proxy", "note", text, f"If nothing arrives, add {url.host} to NO_PROXY.")


async def _network(session: ClientSession, url: URL, token: str, model: str) -> Diagnosis:
    async with session.get(url.origin() / "healthz") as response:
        answer = (await response.content.read(100)).strip()
    if answer == b"degraded":
        return _ill(
            "network",
            "the gateway answers that it cannot serve now",
            "Retry shortly; tell the operator if it persists.",
        )
    if answer != b"ok":
        text = f"something else answers at {url.host}:{url.port} (status {response.status})"
        return _ill("network", text, "Check the address, and whether a proxy or another service listens there.")
    return Diagnosis("network", "well", f"the gateway answers at {url.host}:{url.port}")


async def _token(session: ClientSession, url: URL, token: str, model: str) -> Diagnosis:
    async with session.get(url / "models", headers=_bearer(token)) as response:
        if response.status != 200:
            return _failed("token", response.status, await _error(response))
    return Diagnosis("token", "well", "the token is accepted, its account is active")


async def _model(session: ClientSession, url: URL, token: str, model: str) -> Diagnosis:
    async with session.get(url / "models", headers=_bearer(token)) as response:
        if response.status != 200:
            return _failed("model", response.status, await _error(response))
        names = [entry["id"] for entry in (await response.json())["data"]]
    if model not in names:
        remedy = (
            f"Use one of: {', '.join(names[:20])}." if names else "This account may use no model: ask the operator."
        )
        return _ill("model", f"there is no model `{model}` for this account", remedy)
    return Diagnosis("model", "well", f"{model} may be used")


async def _request(session: ClientSession, url: URL, token: str, model: str) -> Diagnosis:
    body = {"model": model, "stream": True, "max_tokens": 16, "messages": [{"role": "user", "content": "Say hello"}]}
    started = time.monotonic()
    arrivals: list[float] = []
    received = b""
    async with session.post(url / "chat/completions", json=body, headers=_bearer(token)) as response:
        request_id = response.headers.get("x-request-id", "unknown")
        if response.status != 200:
            return _failed("request", response.status, await _error(response))
        try:
            async for piece in response.content.iter_any():
                arrivals.append(time.monotonic())
                received += piece
        except ClientError:
            return _broken_off(received, request_id)
    if b"data: [DONE]" not in received and b'"finish_reason"' not in received:
        return _broken_off(received, request_id)
    first_ms = (arrivals[0] - started) * 1000
    text = f"the answer is complete, its first event came after {first_ms:.0f} ms (request {request_id})"
    if arrivals[-1] - arrivals[0] < BUFFERED_S:
        remedy = "If answers should arrive piece by piece, look for a buffering proxy."
        return Diagnosis("request", "note", f"{text}; all of it came at once", remedy)
    return Diagnosis("request", "well", text)


def _broken_off(received: bytes, request_id: str) -> Diagnosis:
    events = [line for line in received.split(b"\n") if line.startswith(b'data: {"error"')]
    reason = json.loads(events[-1][6:])["error"]["message"] if events else "the connection was cut"
    return _ill("request", f"the answer broke off: {reason} (request {request_id})", REMEDIES[502])


def _failed(subject: str, status: int, error: dict[str, Any]) -> Diagnosis:
    message, code = error.get("message", "no reason given"), error.get("code", "no code")
    text = f"{status} {code}: {message} (request {error.get('request_id', 'unknown')})"
    return _ill(subject, text, REMEDIES.get(status, "Quote the request id to the operator."))


def _unreachable(url: URL, error: Exception) -> Diagnosis:
    reason = (
        f"did not respond within {TIMEOUT_S} s" if isinstance(error, TimeoutError) else f"cannot be reached: {error}"
    )
    remedy = "Check the address, and that no proxy or firewall blocks it. Nothing reached the gateway."
    return _ill("network", f"{url.host}:{url.port} {reason}", remedy)


async def _error(response: ClientResponse) -> dict[str, Any]:
    try:
        answer = json.loads(await response.content.read(65536))
    except ValueError:
        return {}
    error = answer.get("error") if isinstance(answer, dict) else None
    return error if isinstance(error, dict) else {}


def _bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"} if token else {}


def _ill(subject: str, text: str, remedy: str) -> Diagnosis:
    return Diagnosis(subject, "ill", text, remedy)
