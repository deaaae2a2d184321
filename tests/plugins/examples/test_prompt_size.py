"""A prompt that is too large for the caller's group is refused."""

from __future__ import annotations

import pytest

from gateway import Caller, Exchange, Refused
from gateway.testing import exchange
from plugins.examples.prompt_size import PromptSize

SIZES = PromptSize(tokens=100, groups={"trial": 20, "gold": 1000})


def asked(group: str, size: int) -> Exchange:
    """Return a request with a prompt of about `size` tokens, from an account of the group."""
    made = exchange({"messages": [{"role": "user", "content": "x" * 4 * size}]})
    made[Caller] = Caller(account="alice", token_id="alice-1", group=group)
    return made


@pytest.mark.parametrize(("group", "size"), [("trial", 5), ("other", 50), ("gold", 900)])
async def test_a_prompt_within_the_limit_of_the_group_passes(group: str, size: int) -> None:
    await SIZES.on_request(asked(group, size))


@pytest.mark.parametrize(("group", "size", "most"), [("trial", 50, 20), ("other", 110, 100), ("gold", 1100, 1000)])
async def test_a_prompt_that_is_too_large_is_refused_with_the_limit(group: str, size: int, most: int) -> None:
    with pytest.raises(Refused, match=f"{most} is the most here") as refused:
        await SIZES.on_request(asked(group, size))
    assert (refused.value.status, refused.value.code, refused.value.param) == (413, "prompt_too_large", "messages")


async def test_a_request_without_a_prompt_passes() -> None:
    await SIZES.on_request(exchange(b"", method="GET", path="/v1/models"))


def test_a_limit_below_one_token_is_refused() -> None:
    for tokens, groups in ((0, {}), (1, {"trial": 0})):
        with pytest.raises(ValueError, match="1 token or more"):
            PromptSize(tokens=tokens, groups=groups)
