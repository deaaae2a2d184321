"""A plugin learns at once that its reply cannot be sent."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.chat.request import Body
from gateway.errors import Refused
from gateway.exchange import Exchange, Operation, Request
from gateway.reply import Reply


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


async def test_a_refused_body_is_refused_again_without_being_read() -> None:
    read = []

    async def read_once() -> Body:
        read.append("body")
        raise Refused(400, "invalid_request", "'max_tokens' must be a whole number.")

    of = Exchange(Request("POST", "/v1/chat/completions", {}, "", Operation.CHAT), read_once)
    for _ in range(2):
        with pytest.raises(Refused, match="max_tokens"):
            await of.body()
    assert read == ["body"]
