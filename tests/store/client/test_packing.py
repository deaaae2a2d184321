"""Commands are packed as hiredis packs them."""

from __future__ import annotations

from typing import Any

import pytest
from hiredis import pack_command
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.store.client.protocol import pack

PARTS = st.one_of(
    st.text(max_size=300),
    st.binary(max_size=300),
    st.integers(),
    st.sampled_from([0, -1, 9, 10, 2**63 - 1, -(2**63), 2**63, 2**64, "\0", "\r\n", "é", "☃", b"\xff" * 100_000]),
)


@given(st.lists(PARTS, max_size=60))
@example([])
@example(["EVALSHA", "a" * 40, 1, "key", 123_456_789_012, b"", ""])
def test_a_command_is_packed_as_by_hiredis(parts: list[Any]) -> None:
    assert pack(tuple(parts)) == pack_command(tuple(parts))


@pytest.mark.parametrize("wrong", [None, 1.5, True, ["a"], "\ud800"], ids=repr)
def test_what_is_no_argument_is_left_to_hiredis(wrong: Any) -> None:
    def result(packing: Any) -> object:
        try:
            return packing(("SET", "a", wrong))
        except Exception as error:
            return type(error)

    assert result(pack) == result(pack_command)


def test_a_command_may_have_any_length() -> None:
    for size in range(64 * 1024 - 200, 64 * 1024 + 10):
        command: Any = ("SET", "key", b"x" * size, -(2**63), "y")
        assert pack(command) == pack_command(command)
