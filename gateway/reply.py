"""The answer that a plugin gives in place of an upstream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from gateway.errors import check_headers, check_status, check_text

_BODYLESS: Final = (204, 205, 304)


class Reply(msgspec.Struct, frozen=True):
    """A complete response that a plugin gives in place of the upstream.

    Raises `TypeError` or `ValueError` for values that no caller could be sent.
    """

    status: int = 200
    body: bytes = b""
    content_type: str = "application/json; charset=utf-8"
    headers: Mapping[str, str] = {}

    def __post_init__(self) -> None:
        check_status(self.status, 200)
        if not isinstance(self.body, bytes):
            raise TypeError(f"body is bytes, not {type(self.body).__name__}")
        if self.body and self.status in _BODYLESS:
            raise ValueError(f"a response with the status {self.status} has no body")
        check_text("content_type", self.content_type)
        check_headers({"Content-Type": self.content_type, **self.headers})
