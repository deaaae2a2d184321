"""Failures of an upstream before the first event: what the caller is told, and whether another candidate is called.

An upstream's 401, 402 and 403 are about the gateway's credential: its text is never shown. Its 400, 404, 413 and 422 are about
the caller's request and are passed on. Everything else is the channel's fault.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from gateway.chat import error_objects
from gateway.errors import Refused

MAX_ERROR_BODY: Final = 64 * 1024
REQUEST_FAULT: Final = frozenset({400, 404, 413, 422})
OVERLOADED: Final = 529
CREDENTIAL_FAULT: Final = frozenset({401, 402, 403})
REDACTED: Final = "[redacted]"


class UpstreamFailure(msgspec.Struct, frozen=True):
    """Why a candidate gave no answer.

    `error`: what the caller is told if no other candidate answers. `final`: no other candidate is called. `maybe_billed`: the
    upstream may have worked on the request. `cool_s`: for how long the upstream is not to be called, None where it did not say
    so. `credential_refused`: the upstream refused the gateway's credential.
    """

    error: Refused
    final: bool = False
    maybe_billed: bool = False
    cool_s: float | None = None
    credential_refused: bool = False


def of_answer(status: int, headers: Mapping[str, str], body: bytes, credentials: Sequence[str]) -> UpstreamFailure:
    """Return the failure that a response other than the requested stream stands for."""
    if status in CREDENTIAL_FAULT:
        return UpstreamFailure(
            Refused(
                502,
                "upstream_auth_failed",
                "The upstream refused the gateway's own credential. Tell the operator, or choose another model.",
                should_retry=False,
            ),
            cool_s=0,
            credential_refused=True,
        )
    if status in REQUEST_FAULT and (passed_on := _passed_on(status, headers, body, credentials)) is not None:
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
    """Return the failure that an error as the first event of a stream stands for."""
    detail = _detail(error, credentials)
    message = detail.get("message") or "no reason given"
    return UpstreamFailure(failed(f"The upstream answered with an error: {message}"))


def failed(message: str, code: str = "upstream_error") -> Refused:
    """Return a 502."""
    return Refused(502, code, message)


def unreachable() -> UpstreamFailure:
    """Return the failure of a channel to which there is no connection."""
    text = "The upstream cannot be reached. Retry later or choose another model."
    return UpstreamFailure(failed(text, "upstream_unreachable"))


def dropped() -> UpstreamFailure:
    """Return the failure of a connection that closed after the request was sent and before a response."""
    text = "The upstream closed the connection without an answer. Retry later or choose another model."
    error = failed(text)
    error.should_retry = False
    return UpstreamFailure(error, maybe_billed=True)


def invalid_response() -> UpstreamFailure:
    """Return the failure of a response that is not HTTP/1.1 or not an event stream."""
    return UpstreamFailure(
        failed("The upstream's answer is not an event stream. Tell the operator, or choose another model.")
    )


def too_large() -> UpstreamFailure:
    """Return the failure of a response that exceeded the channel's `max_response_bytes` with its first event."""
    return UpstreamFailure(failed("The answer is larger than this gateway allows. Ask for less."), maybe_billed=True)


def timed_out() -> UpstreamFailure:
    """Return the failure of an upstream that sent no event within `first_byte`. A retry may cost twice."""
    text = "The upstream took too long to begin its answer. Retry later or choose another model."
    return UpstreamFailure(Refused(504, "upstream_timeout", text, should_retry=False), maybe_billed=True)


def scrubbed(text: str, credentials: Sequence[str]) -> str:
    """Return `text` with the channel's credentials replaced."""
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
    """Return the string fields of an error, in whichever dialect."""
    found = error_objects.details(error_objects.decode(body))
    return {name: scrubbed(value, credentials)[:2000] for name, value in found.items()}


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Return seconds. Dates are ignored, because the upstream's clock may be off."""
    text = headers.get("Retry-After", "")
    return float(text) if text.isascii() and text.isdigit() and len(text) < 9 else None
