"""A plugin learns at once that its reply cannot be sent."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.base.errors import Refused
from gateway.chat.request import Body
from gateway.chat.usage import Usage
from gateway.domain.exchange import Attempt, Exchange, Request
from gateway.domain.reply import Reply
from gateway.operations.operation import Operation


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


async def _no_body() -> Body:
    raise AssertionError


def new_exchange() -> Exchange:
    return Exchange(Request("POST", "/v1/chat/completions", {}, "127.0.0.1", Operation.CHAT), _no_body)


def test_what_was_charged_is_said_by_one_plugin_alone() -> None:
    of, quota, other = new_exchange(), object(), "other"
    of.attempts.append(Attempt("a", "m", 200, usage=Usage(3, 4, "upstream")))
    assert (of.charge_micros, of.price, of.usage.prompt_tokens) == (0, {}, 3)
    of.charge(quota, 11, {"input": 1}, of.usage)
    of.charge(quota, 9)
    with pytest.raises(RuntimeError, match="str charges a request that object charges"):
        of.charge(other, 0)
    for name, value in (("charge_micros", 0), ("price", {}), ("usage", Usage()), ("cost_micros", 0)):
        with pytest.raises(AttributeError, match=f"property '{name}' of 'Exchange' object has no setter"):
            setattr(of, name, value)
    of.price.clear()
    of.attempts.clear()
    assert (of.charge_micros, of.price, of.usage.prompt_tokens) == (9, {"input": 1}, 3)


@pytest.mark.parametrize("wrong", ["12", 1.0, True, None, -1, 2**63, 2**70])
def test_a_charge_that_no_record_can_have_is_refused(wrong: Any) -> None:
    of = new_exchange()
    with pytest.raises((TypeError, ValueError), match="a charge is"):
        of.charge("quota", wrong)
    with pytest.raises((TypeError, ValueError)):
        of.charge("quota", 1, ["input"])  # type: ignore[arg-type]
    assert (of.charge_micros, of.price) == (0, {})
