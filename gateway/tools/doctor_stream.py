"""One minimal streaming request, and what the way does to its answer: whether it is cut, or comes in one piece.

Both may be the upstream's doing. The gateway's own record of the request tells: how long the answer took there, and how it ended.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any, Final

import msgspec
from aiohttp import ClientError, ClientSession, ClientTimeout
from yarl import URL

from gateway.tools.diagnosis import Diagnosis, ill, note, shown, well
from gateway.tools.doctor_answer import REMEDIES, Answer, failed, received, stranger
from gateway.tools.doctor_network import CONNECT_S

SILENCE_S: Final = 120
"""How long to wait for the next piece of the answer: longer than the gateway waits for an upstream by default."""
BUFFERED_MS: Final = 50
"""An answer that took so much longer to leave the gateway than to arrive was kept back on the way."""
RECORD_AFTER_S: Final = (0.0, 0.2, 0.5, 1.0, 2.0)
"""When to ask for the record: it is closed soon after the answer."""


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


def _not_a_stream(answer: Answer, url: URL, took_s: float) -> Diagnosis:
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
        remedy = "If answers should arrive piece by piece, look for a buffering proxy."
        return note("request", "maybe_buffered", f"{text}; all of it came at once", remedy)
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
    if record is not None:
        said = f"{outcome} {shown(str(record.get('error_code')))}".strip()
        return ill("request", "cut_by_gateway", f"{text}; the gateway's record says {said}", REMEDIES[502])
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
