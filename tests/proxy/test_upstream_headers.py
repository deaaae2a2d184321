"""What is kept of the head of an upstream's answer."""

from __future__ import annotations

import pytest
from multidict import CIMultiDict

from gateway.proxy.upstream import keep_only_id, kept_id


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ("req_7f3a", "req_7f3a"),
        ("x" * 500, "x" * 128),
        ("", ""),
        ("two words", ""),
        ("t\tab", ""),
        ("ü", ""),
        ("\x1b[31m", ""),
    ],
)
def test_an_id_is_visible_ascii_of_bounded_length(value: str, kept: str) -> None:
    assert kept_id(CIMultiDict({"X-Request-ID": value})) == kept


def test_an_answer_without_an_id_has_none() -> None:
    assert kept_id({}) == ""


def test_the_id_is_kept_when_the_other_headers_are_freed() -> None:
    headers = CIMultiDict({"x-request-id": "req_1", "set-cookie": "a" * 5000})
    keep_only_id(headers)
    assert dict(headers) == {"x-request-id": "req_1"}
