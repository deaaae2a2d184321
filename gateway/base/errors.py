"""The exceptions of the gateway, and the function that renders them for a caller.

A caller gets every error in one shape, on every path:
`{"error": {"message", "type", "param", "code", "request_id"}}`. `type` is a family that client libraries know.
`code` is what a program should check. The message says what to do next.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Mapping
from math import ceil, isfinite
from typing import Final, Literal, Self

import msgspec

from gateway.base.text import without_credentials

MAX_RETRY_AFTER_S: Final = 59
"""Above it, some client libraries sleep for the whole time and others retry at once."""

DAY_S: Final = 86_400

MODEL: Final = re.compile(r"[\w./:@+-]{1,100}", re.ASCII)
"""A name of a model that an error repeats."""

PASSING: Final = frozenset(
    (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EINTR)
)
"""Errors of the operating system that may pass without a change by a person."""

TYPES: Final[dict[int, str]] = {
    401: "authentication_error",
    402: "insufficient_quota",
    403: "permission_error",
    429: "rate_limit_error",
    500: "service_error",
    502: "upstream_error",
    503: "service_error",
    504: "upstream_error",
}
"""Status to `type`. Every other 4xx is an `invalid_request_error`."""


FIELDS: Final = ("message", "type", "param", "code", "request_id")
"""The fields that each error has."""


class GatewayError(Exception):
    """The base class of the gateway's own exceptions. `kind` is for scripts: a command's exit code follows from it."""

    kind: str = "refused"

    def of_kind(self, kind: Literal["not_found", "exists", "conflict"]) -> Self:
        """Return this error as one of a kind."""
        self.kind = kind
        return self


class Misconfigured(GatewayError):
    """The file or the environment is wrong. The message is one line that names the place and the cure. Exit code 2."""

    kind = "misconfigured"


class Refused(GatewayError):
    """A request is refused. Raised by a plugin or by the gateway, and rendered by `render`.

    `status`, `code` and `message` are what the caller sees. `param` names the field of the body at fault. `retry_after_s`
    becomes whole seconds from 1 to 59 in `Retry-After`, and milliseconds in `retry-after-ms`; where it is longer, the message says
    how long, and `should_retry` is False unless it is given. `should_retry=False` tells client libraries that a retry will fail,
    too. `details` are further fields of the error for programs, numbers or text. Raises `TypeError` or `ValueError` for
    arguments that no caller could be sent.

    `unavailable` is for the record alone: why each channel could not be called, by the channel's name. `counted_as` is for the
    metrics: what stands for a code that an upstream chose; empty for the code itself.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        type: str | None = None,  # noqa: A002 - the name on the wire
        param: str | None = None,
        retry_after_s: float | None = None,
        should_retry: bool | None = None,
        headers: dict[str, str] | None = None,
        details: Mapping[str, int | str] | None = None,
    ) -> None:
        super().__init__(message)
        check_status(status, 400)
        for name, text in (("code", code), ("message", message), ("type", type), ("param", param)):
            if text is not None or name in ("code", "message"):
                check_text(name, text)
        if retry_after_s is not None and not (isfinite(retry_after_s) and retry_after_s >= 0):
            raise ValueError(f"retry_after_s is a number of seconds from 0, not {retry_after_s}")
        check_headers(headers or {})
        if details:
            check_details(details)
        self.status = status
        self.code = code
        self.message = message
        self.type = type or TYPES.get(status, "invalid_request_error")
        self.param = param
        self.retry_after_s = retry_after_s
        self.should_retry = should_retry
        self.extra_headers = headers or {}
        self.details = details
        self.unavailable: dict[str, str] = {}
        self.counted_as = ""

    def __repr__(self) -> str:
        return f"Refused({self.status}, {self.code!r}, {self.message!r})"


class StoreAway(GatewayError):
    """The store did not answer in time, or answered that it cannot serve now. A caller gets a 503, never a 401, 402 or 403.

    The message is for the log. It contains no address and no credential.
    """

    kind = "store_away"
    event = "store_away"
    """The event in the log."""


class StoreError(GatewayError):
    """The store answered a command with an error that a retry will not fix: wrong type, wrong arguments. A bug in the gateway."""


def check_status(status: object, lowest: int) -> None:
    """Raise `TypeError` or `ValueError` for what is no status from `lowest` to 599."""
    if not isinstance(status, int):
        raise TypeError(f"status is a number, not {status!r}")
    if not lowest <= status <= 599:
        raise ValueError(f"status is from {lowest} to 599, not {status}")


def check_text(name: str, text: object) -> None:
    """Raise `TypeError` for what is no text, and `ValueError` for text that has no form in UTF-8."""
    if not isinstance(text, str):
        raise TypeError(f"{name} is text, not {text!r}")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{name} has a lone surrogate: {text!r}") from None


def check_headers(headers: object) -> None:
    """Raise `TypeError` or `ValueError` for what are no headers: names and values, each text on one line."""
    if not isinstance(headers, Mapping):
        raise TypeError(f"headers are a dict of text, not {headers!r}")
    for pair in headers.items():
        for text in pair:
            check_text("a header", text)
            if not {"\r", "\n", "\0"}.isdisjoint(text):
                raise ValueError(f"a header is one line of text, not {text!r}")


def check_details(details: object) -> None:
    """Raise `TypeError` or `ValueError` for what are no further fields of an error."""
    if not isinstance(details, Mapping):
        raise TypeError(f"details are a dict, not {details!r}")
    for name, value in details.items():
        check_text("a name of details", name)
        if name in FIELDS:
            raise ValueError(f"details have a name of their own, not {name!r}")
        if not isinstance(value, int):
            check_text(f"details[{name!r}]", value)


def cannot_listen(address: str, error: OSError) -> str:
    """Say why nothing can listen on `address`."""
    reason = "another program listens there" if error.errno == errno.EADDRINUSE else error.strerror
    return f"cannot listen on {address}: {reason}"


def cannot_use(what: str, error: OSError, cure: str = "") -> GatewayError:
    """Return the error for a file or a folder that cannot be used.

    It is `Misconfigured` where only a person can change that, and not for a full disk, which may have space again.
    """
    return (GatewayError if error.errno in PASSING else Misconfigured)(
        f"{what}: {error.strerror}{f'; {cure}' if cure else ''}"
    )


def unavailable(retry_after_s: float = 1) -> Refused:
    """Return the 503 for a store that is away, for overload, and while the gateway drains."""
    return Refused(
        503,
        "service_unavailable",
        "The service cannot take this request at the moment. Nothing was charged; try again shortly.",
        retry_after_s=retry_after_s,
    )


def model_not_found(model: str) -> Refused:
    """Return the 404 for a model that does not exist or that this caller may not use; the two get the same answer."""
    named = f"model '{model}'" if MODEL.fullmatch(model) and without_credentials(model) == model else "such model"
    text = f"There is no {named}, or it is not available to this account. GET /v1/models lists those that are."
    return Refused(404, "model_not_found", text, param="model")


def internal() -> Refused:
    """Return the 500 for a bug in the gateway. Its message is only the request id, which `render` adds."""
    return Refused(500, "internal_error", "")


def as_refused(error: BaseException) -> Refused:
    """Return what a caller is told about any exception."""
    if isinstance(error, Refused):
        return error
    if isinstance(error, StoreAway):
        return unavailable()
    return internal()


def render(error: Refused, request_id: str) -> bytes:
    """Return the JSON body of an error."""
    message = error.message or f"Internal error. Quote the request id {request_id} to the operator."
    if error.retry_after_s is not None and error.retry_after_s > MAX_RETRY_AFTER_S:
        message += f" Retry in {in_words(error.retry_after_s)}."
    told = dict(zip(FIELDS, (message, error.type, error.param, error.code, request_id), strict=True))
    return msgspec.json.encode({"error": told | dict(error.details or {})})


def headers_of(error: Refused) -> dict[str, str]:
    """Return the headers of an error: how to authenticate, when to retry, whether to."""
    headers = dict(error.extra_headers)
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if error.retry_after_s is not None:
        wait_s = min(max(error.retry_after_s, 0.001), MAX_RETRY_AFTER_S)
        headers["Retry-After"] = str(max(1, -int(-wait_s // 1)))
        headers["retry-after-ms"] = str(ceil(wait_s * 1000))
    should_retry = error.should_retry
    if should_retry is None and (error.status == 401 or (error.retry_after_s or 0) > MAX_RETRY_AFTER_S):
        should_retry = False
    if should_retry is not None:
        headers["x-should-retry"] = "true" if should_retry else "false"
    return headers


def in_words(wait_s: float) -> str:
    """Return a time in seconds, minutes or hours, rounded up: `61 seconds`, `10 minutes`, `3 hours`, `more than a day`."""
    if wait_s > DAY_S:
        return "more than a day"
    for unit_s, name in ((3600, "hours"), (60, "minutes")):
        if wait_s > 2 * unit_s:
            return f"{ceil(wait_s / unit_s)} {name}"
    return f"{ceil(wait_s)} seconds"
