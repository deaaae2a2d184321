"""What an upstream's answer before its first event means: to the caller, and to the next candidate.

An upstream's 401, 402 and 403 speak of our credential: its text is never shown. Its 400, 404, 413 and 422 speak of the
caller's own request and are passed on. All else is the channel's fault.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from gateway.errors import Refused

LARGEST_ERROR_BODY: Final = 64 * 1024
CALLERS_FAULT: Final = frozenset({400, 404, 413, 422})
OVERLOADED: Final = 529
CREDENTIAL_FAULT: Final = frozenset({401, 402, 403})
REDACTED: Final = "[redacted]"


class UpstreamFailure(msgspec.Struct, frozen=True):
    """`error` is what the caller is told if no other candidate answers; `final`: do not ask another.

    `cool_s`: the upstream does not want to be asked again for so long. `refuses_us`: it is our credential that is wrong.
    """

    error: Refused
    final: bool = False
    maybe_billed: bool = False
    cool_s: float | None = None
    refuses_us: bool = False


def of_answer(status: int, headers: Mapping[str, str], body: bytes, credentials: Sequence[str]) -> UpstreamFailure:
    """The verdict on an answer that is not the stream that was asked for."""
    if status in CREDENTIAL_FAULT:
        return UpstreamFailure(
            Refused(
                502,
                "upstream_auth_failed",
                "The upstream refused the gateway's own credential. Tell the operator, or choose another model.",
                should_retry=False,
            ),
            cool_s=0,
            refuses_us=True,
        )
    if status in CALLERS_FAULT and (passed_on := _passed_on(status, headers, body, credentials)) is not None:
        return UpstreamFailure(passed_on, final=True)
    wait_s = _retry_after(headers)
    if status == 429:
        error = Refused(
            429,
            "upstream_rate_limited",
            "The upstream is limiting requests for this model. Wait, then retry with backoff, or choose another model.",
            retry_after_s=wait_s or 1,
        )
        return UpstreamFailure(error, cool_s=wait_s or 0)
    text = "The upstream failed to answer. Retry later or choose another model."
    return UpstreamFailure(failed(text), cool_s=(wait_s or 0) if status == OVERLOADED else wait_s)


def of_event(error: bytes, credentials: Sequence[str]) -> UpstreamFailure:
    """The verdict on a stream whose first event is an error: an error before the first byte."""
    detail = _detail(error, credentials)
    message = detail.get("message") or "no reason given"
    return UpstreamFailure(failed(f"The upstream answered with an error: {message}"))


def failed(message: str, code: str = "upstream_error") -> Refused:
    """A 502."""
    return Refused(502, code, message)


def unreachable() -> UpstreamFailure:
    """No connection to the channel."""
    text = "The upstream cannot be reached. Retry later or choose another model."
    return UpstreamFailure(failed(text, "upstream_unreachable"))


def dropped() -> UpstreamFailure:
    """The connection ended after the request was sent and before anything was answered."""
    text = "The upstream closed the connection without an answer. Retry later or choose another model."
    error = failed(text)
    error.should_retry = False
    return UpstreamFailure(error, maybe_billed=True)


def invalid_response() -> UpstreamFailure:
    """An answer that is not HTTP/1.1 or not an event stream."""
    return UpstreamFailure(
        failed("The upstream's answer is not an event stream. Tell the operator, or choose another model.")
    )


def too_large() -> UpstreamFailure:
    """An answer whose first read was beyond the channel's `max_response_bytes`."""
    return UpstreamFailure(failed("The answer is larger than this gateway allows. Ask for less."), maybe_billed=True)


def timed_out() -> UpstreamFailure:
    """Nothing came within the channel's `first_byte`; the upstream may have begun to work, so a retry may cost twice."""
    text = "The upstream took too long to begin its answer. Retry later or choose another model."
    return UpstreamFailure(Refused(504, "upstream_timeout", text, should_retry=False), maybe_billed=True)


def scrubbed(text: str, credentials: Sequence[str]) -> str:
    """`text` without the channel's credentials."""
    for credential in credentials:
        text = text.replace(credential, REDACTED)
    return text


def _passed_on(status: int, headers: Mapping[str, str], body: bytes, credentials: Sequence[str]) -> Refused | None:
    if "json" not in headers.get("Content-Type", ""):
        return None
    detail = _detail(body, credentials)
    if not detail.get("message"):
        return None
    return Refused(
        status,
        detail.get("code") or "upstream_refused",
        detail["message"],
        type=detail.get("type"),
        param=detail.get("param"),
    )


def _detail(body: bytes, credentials: Sequence[str]) -> dict[str, str]:
    """The string fields of an error object; the shapes in use are `{"error": {...}}`, `{"error": "..."}` and the bare object."""
    try:
        answer: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return {}
    inner = answer.get("error", answer) if isinstance(answer, dict) else None
    if isinstance(inner, str):
        inner = {"message": inner}
    if not isinstance(inner, dict):
        return {}
    return {
        name: scrubbed(value, credentials)[:2000]
        for name, value in inner.items()
        if name in ("message", "type", "param", "code") and isinstance(value, str)
    }


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds. A date is not looked at: nobody knows how far the upstream's clock is off."""
    text = headers.get("Retry-After", "")
    return float(text) if text.isascii() and text.isdigit() and len(text) < 9 else None
