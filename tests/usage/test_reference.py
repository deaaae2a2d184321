"""References of callers: what is accepted, and what is kept of one."""

from __future__ import annotations

import pytest
from multidict import CIMultiDict, CIMultiDictProxy

from gateway.base.errors import Refused
from gateway.usage.record import MAX_LENGTH, hashed_reference, reference_in


def headers(*values: str) -> CIMultiDictProxy[str]:
    return CIMultiDictProxy(CIMultiDict([("x-client-REQUEST-id", value) for value in values]))


def test_a_reference_is_read_from_its_header() -> None:
    assert reference_in(headers("order 4711/~")) == "order 4711/~"
    assert reference_in(headers("x" * MAX_LENGTH)) == "x" * MAX_LENGTH
    assert reference_in(headers()) == ""
    assert reference_in({"X-Client-Request-Id": "plain"}) == "plain"


@pytest.mark.parametrize(
    "values", [("",), ("", "a"), ("x" * (MAX_LENGTH + 1),), ("\u00e9",), ("\udcff",), ("a\tb",), ("a", "b"), ("a", "a")]
)
def test_what_cannot_be_kept_is_refused_with_what_is_accepted(values: tuple[str, ...]) -> None:
    with pytest.raises(Refused, match="Send one header X-Client-Request-Id with 1 to 512 printable ASCII") as refused:
        reference_in(headers(*values))
    assert (refused.value.status, refused.value.code) == (400, "invalid_request")


def test_a_hash_is_of_one_account_and_one_reference() -> None:
    pairs = [(account, name) for account in ("alice", "bob", "a" * 100, "a" * 101) for name in ("x", "y", "bobx")]
    hashes = {hashed_reference(*pair) for pair in pairs}
    assert len(hashes) == len(pairs)
    assert all(len(each) == 32 and "x" not in each for each in hashes)
    assert hashed_reference("alice", "x") == hashed_reference("alice", "x")
