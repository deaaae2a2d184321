"""A plugin learns at once that its reply cannot be sent."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.exchange import Reply


@pytest.mark.parametrize(
    "wrong",
    [
        *({"status": status} for status in (None, "200", 199, 100, 600)),
        *({"status": status, "body": b"{}"} for status in (204, 205, 304)),
        {"body": None},
        {"body": "{}"},
        *({"content_type": text} for text in (None, "\ud800", "text/plain\r\na: b")),
        *({"headers": headers} for headers in (None, {"a": 1}, {"a": "b\nc: d"})),
    ],
    ids=repr,
)
def test_a_reply_that_cannot_be_sent_is_an_error_where_it_is_made(wrong: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError)):
        Reply(**wrong)


@pytest.mark.parametrize("status", [204, 205, 304])
def test_a_status_without_a_body_is_allowed(status: int) -> None:
    assert Reply(status).body == b""
