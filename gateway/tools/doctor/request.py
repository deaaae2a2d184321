"""The answers that `gateway doctor` gets: who answered, and what the way does to one minimal stream.

The gateway, or something on the way to it, answered: the gateway shows itself in each of its answers. An error of the gateway has
the id of its request, a UUID of version 7, and its list of models names the gateway. Both are in the body, because proxies
replace headers.

A stream may be cut, or come in one piece. Both may be the upstream's doing. The gateway's own record of the request tells: how
long the answer took there, and how it ended.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from aiohttp import ClientError, ClientResponse, ClientSession, ClientTimeout
from yarl import URL

from gateway.base.ids import arrival_ms
from gateway.tools.channel_test import Diagnosis, ill, shown, well
from gateway.tools.doctor.network import CONNECT_S

MOST_BYTES: Final = 4 << 20
TITLE: Final = re.compile(rb"<title[^>]*>([^<]{1,200})", re.IGNORECASE)

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
RESTRICTED: Final = (
    "Ask the operator which models and addresses the token is for. Behind a proxy, the gateway sees this address only if "
    "`port.trusted_proxies` has the proxy's."
)
QUOTE_THE_ID: Final = "Quote the request id to the operator."
ASK_THE_OPERATOR: Final = "Ask the operator of the service for its base address, with the path prefix, if it has one."

SILENCE_S: Final = 120
"""How long to wait for the next piece of the answer: longer than the gateway waits for an upstream by default."""
BUFFERED_MS: Final = 50
"""An answer that took so much longer to leave the gateway than to arrive was kept back on the way."""
RECORD_AFTER_S: Final = (0.0, 0.2, 0.5, 1.0, 2.0)
"""When to ask for the record: it is closed soon after the answer."""


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
        return error if _is_request_id(error["request_id"]) else None

    @property
    def models(self) -> list[str] | None:
        """The names of the models in the gateway's list; None where this is not its list."""
        entries = _object(self.body).get("data")
        if self.status != 200 or not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            return None
        if any(entry.get("owned_by") != "sluicegate" for entry in entries):
            return None
        if not entries and not _is_request_id(self.headers.get("x-request-id")):
            return None
        return [str(entry.get("id")) for entry in entries]

    @property
    def is_of_gateway(self) -> bool:
        """Whether the gateway gave this answer."""
        return self.error is not None or self.models is not None


async def received(response: ClientResponse) -> HttpAnswer:
    """Read a whole answer, or as much of it as the gateway would send."""
    body = bytearray()
    async for piece in response.content.iter_any():
        body += piece
        if len(body) > MOST_BYTES:
            break
    return HttpAnswer(response.status, response.headers, bytes(body))


def failed(subject: str, answer: HttpAnswer, url: URL) -> Diagnosis:
    """Return what an answer says that is not the expected one: an error of the gateway, or an answer of something else."""
    error = answer.error
    if error is None:
        return stranger(subject, answer, url)
    code, message = shown(str(error["code"])), shown(str(error["message"]), 1000)
    text = f"{answer.status} {code}: {message} (request {error['request_id']})"
    remedy = RESTRICTED if code == "token_restricted" else REMEDIES.get(answer.status, QUOTE_THE_ID)
    return ill(subject, code, text, remedy)


def stranger(subject: str, answer: HttpAnswer, url: URL) -> Diagnosis:
    """Return the verdict on an answer that is not the gateway's."""
    status, by = answer.status, _signature(answer)
    if 300 <= status < 400 and "Location" in answer.headers:
        return _redirect(subject, answer, url)
    if status == 407 or (status == 401 and "WWW-Authenticate" in answer.headers):
        remedy = (
            "Ask the operator for an address without a login in front; the header can carry only the gateway's token."
        )
        return ill(subject, "login_of_proxy", f"a proxy asks for a login of its own ({by})", remedy)
    if status >= 500:
        remedy = (
            "Ask its operator whether the gateway runs, and whether the proxy has its right address, and a timeout longer than the "
            "channels' `timers.total` (nginx: proxy_read_timeout)."
        )
        return ill(subject, "proxy_without_gateway", f"a proxy answers in place of the gateway ({by})", remedy)
    text = f"something else answers at {url.host}:{url.port}, such as a login page, a firewall or a proxy with limits ({by})"
    return ill(subject, "other_service", text, f"Open the address in a browser. {ASK_THE_OPERATOR}")


def _redirect(subject: str, answer: HttpAnswer, url: URL) -> Diagnosis:
    try:
        place = shown(
            str(url.join(URL(answer.headers["Location"])).with_query(None).with_fragment(None).with_user(None))
        )
    except ValueError:
        place = "no address"
    remedy = (
        "Clients that follow a redirect drop the token, or the body: use the address behind it. If that is a login page, of the "
        f"network or in front of the service: {ASK_THE_OPERATOR}"
    )
    return ill(subject, "redirect", f"it redirects to {place} ({_signature(answer)})", remedy)


def _signature(answer: HttpAnswer) -> str:
    """Return by what one may recognize who gave an answer: its status, software and title."""
    parts = [f"status {answer.status}"]
    parts += [f"{name} {shown(answer.headers[name], 60)}" for name in ("Server", "Via") if name in answer.headers]
    if (title := TITLE.search(answer.body[:65536])) is not None:
        parts.append(f"title `{shown(' '.join(title[1].decode(errors='replace').split()), 60)}`")
    return ", ".join(parts)


def _is_request_id(text: object) -> bool:
    try:
        return isinstance(text, str) and arrival_ms(text) > 0
    except ValueError:
        return False


def _object(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


class Stream(msgspec.Struct):
    """What came of the answer, and when, in milliseconds since the request was sent."""

    request_id: str = ""
    received: bytes = b""
    first_ms: float = 0.0
    last_ms: float = 0.0

    @property
    def is_whole(self) -> bool:
        """Whether the answer has its end."""
        return b"data: [DONE]" in self.received or b'"finish_reason":"' in self.received.replace(b": ", b":")


async def request(session: ClientSession, base: URL, headers: dict[str, str], model: str, max_tokens: int) -> Diagnosis:
    """Send the request, and return what is wrong with its answer."""
    began = time.monotonic()
    try:
        return await _request(session, base, headers, model, max_tokens)
    except (ClientError, OSError, TimeoutError) as error:
        end = "nothing came" if isinstance(error, TimeoutError) else "the connection was closed"
        text = f"no answer began: {end} after {time.monotonic() - began:.1f} s; smaller requests are answered by the gateway"
        remedy = "Something on the way, or the gateway, gives up: ask the operator whether `gateway usage list` has the request."
        return ill("request", "no_answer", text, remedy)


async def _request(
    session: ClientSession, base: URL, headers: dict[str, str], model: str, max_tokens: int
) -> Diagnosis:
    prompt = "Say hello" if max_tokens < 100 else "Write a long story"
    body = {"model": model, "stream": True, "max_tokens": max_tokens, "messages": [{"role": "user", "content": prompt}]}
    url = base / "chat/completions"
    began = time.monotonic()
    stream = Stream()
    timeout = ClientTimeout(sock_connect=CONNECT_S, sock_read=SILENCE_S)
    async with session.post(url, json=body, headers=headers, allow_redirects=False, timeout=timeout) as response:
        if response.status != 200 or response.content_type != "text/event-stream":
            answer = await received(response)
            return _not_a_stream(answer, url, time.monotonic() - began)
        stream.request_id = response.headers.get("x-request-id", "")
        try:
            async for piece in response.content.iter_any():
                stream.last_ms = (time.monotonic() - began) * 1000
                stream.first_ms = stream.first_ms or stream.last_ms
                stream.received += piece
        except (ClientError, TimeoutError):
            stream.last_ms = (time.monotonic() - began) * 1000
    if stream.is_whole:
        return await _arrival(session, base, headers, stream)
    return await _cut(session, base, headers, stream)


def _not_a_stream(answer: HttpAnswer, url: URL, took_s: float) -> Diagnosis:
    if answer.error is not None:
        return failed("request", answer, url)
    found = stranger("request", answer, url)
    text = f"after {took_s:.1f} s this request, and no smaller one, is answered by something else: {found.text}"
    return msgspec.structs.replace(found, text=text)


async def _arrival(session: ClientSession, base: URL, headers: dict[str, str], stream: Stream) -> Diagnosis:
    """Return whether the answer came piece by piece, as it left the gateway."""
    text = f"the answer is complete, its first event came after {stream.first_ms:.0f} ms (request {_id(stream)})"
    arriving_ms = stream.last_ms - stream.first_ms
    if arriving_ms >= BUFFERED_MS:
        return well("request", text)
    record = await _record(session, base, headers, stream)
    first_ms = None if record is None else record.get("first_byte_ms")
    if record is None or not isinstance(first_ms, int):
        return well("request", f"{text}; all of it came at once")
    leaving_ms = record["duration_ms"] - first_ms
    if leaving_ms - arriving_ms < BUFFERED_MS:
        return well("request", f"{text}; all of it came at once, as the upstream sent it")
    remedy = "A proxy on the way buffers: let its operator switch that off for this address (nginx: proxy_buffering off, gzip off)."
    text = f"{text}; it took {leaving_ms} ms to leave the gateway, and came at once at its end"
    return ill("request", "buffered", text, remedy)


async def _cut(session: ClientSession, base: URL, headers: dict[str, str], stream: Stream) -> Diagnosis:
    """Return who cut the answer: the gateway, because of its upstream, or something on the way."""
    events = [line for line in stream.received.split(b"\n") if line.startswith(b'data: {"error"')]
    if events:
        error = _error(events[-1])
        text = f"the answer broke off: {shown(str(error.get('message')), 1000)} (request {_id(stream)})"
        return ill("request", shown(str(error.get("code"))), text, REMEDIES[502])
    record = await _record(session, base, headers, stream)
    outcome = "" if record is None else str(record.get("outcome"))
    text = f"the answer broke off after {stream.last_ms / 1000:.1f} s: the connection was cut (request {_id(stream)})"
    if outcome in ("completed", "caller_gone"):
        said = "sent it whole" if outcome == "completed" else "saw its caller leave"
        remedy = (
            "A proxy on the way cuts answers that are long, or silent for long: let its operator make its timeouts longer than "
            "the channels' `timers.total` (nginx: proxy_read_timeout)."
        )
        return ill("request", "cut_on_the_way", f"{text}; the gateway {said}", remedy)
    remedy = "Ask the operator for the record of this request: `gateway trace ID` says who cut it."
    return ill("request", "cut", text, remedy)


async def _record(session: ClientSession, base: URL, headers: dict[str, str], stream: Stream) -> dict[str, Any] | None:
    """Return the gateway's record of the request; None where there is none to be had."""
    if not stream.request_id:
        return None
    for after_s in RECORD_AFTER_S:
        await asyncio.sleep(after_s)
        url = base / "requests" / stream.request_id
        try:
            async with session.get(url, headers=headers, allow_redirects=False) as response:
                answer = await received(response)
            record = json.loads(answer.body)
        except (ClientError, OSError, TimeoutError, ValueError):
            return None
        if answer.status == 200 and isinstance(record, dict) and record.get("outcome") is not None:
            return record
        if answer.status != 404:
            return None
    return None


def _error(event: bytes) -> dict[str, Any]:
    try:
        error = json.loads(event.removeprefix(b"data: "))["error"]
    except (ValueError, KeyError, TypeError):
        return {}
    return error if isinstance(error, dict) else {}


def _id(stream: Stream) -> str:
    return shown(stream.request_id, 60) or "unknown"
