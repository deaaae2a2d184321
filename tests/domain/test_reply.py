"""A reply is checked where it is made."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway import Reply, Usage


async def nothing() -> AsyncIterator[bytes]:
    yield b""


@pytest.mark.parametrize(
    "usage",
    [
        Usage(-5, -5),
        Usage(7, 3.5),  # type: ignore[arg-type]
        Usage("a", 1),  # type: ignore[arg-type]
        Usage(10**18, 1),
        Usage(True, 1),
        Usage(5, 5, cached_tokens=6),
        (5, 5),
    ],
    ids=repr,
)
async def test_a_usage_that_cannot_be_charged_is_refused(usage: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="usage"):
        Reply(events=nothing(), usage=usage, charge="as-upstream")
    assert Reply(events=nothing(), usage=Usage(5, 7, cached_tokens=5), charge="as-upstream").usage is not None
