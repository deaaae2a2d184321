"""Wrong tokens are counted, and logged with their address."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from gateway.admin.actions.action import Scope
from gateway.admin.actions.management_tokens import ManagementTokens
from gateway.admin.http.app import ADMIN, Callers
from gateway.base.errors import Refused, StoreAway
from tests.admin.http.conftest import TOKEN


class Counted:
    """Callers, and how many wrong tokens they counted."""

    def __init__(self, tokens: ManagementTokens) -> None:
        self.wrong = 0
        self.callers = Callers(lambda: TOKEN, tokens, self._count)

    def _count(self) -> None:
        self.wrong += 1

    async def code(self, authorization: str, address: str = "192.0.2.1") -> str:
        try:
            return (await self.callers.of(authorization, address)).name
        except Refused as refused:
            return refused.code


@pytest.fixture
def counted(tokens: ManagementTokens) -> Counted:
    return Counted(tokens)


@pytest.mark.parametrize(
    "authorization",
    [
        "Bearer wrong",
        f"Basic {TOKEN}",
        TOKEN,
        "Bearer ",
        f"Bearer {TOKEN} x",
        "Bearer \udcff",
        "Bearer sk-mgmt-a-b",
        "Bearer",
    ],
)
async def test_what_is_no_token_is_refused_and_counted(counted: Counted, authorization: str) -> None:
    assert await counted.code(authorization) == "token_invalid"
    assert counted.wrong == 1


async def test_none_is_refused_and_not_counted(counted: Counted) -> None:
    assert await counted.code("") == "token_invalid"
    assert counted.wrong == 0


async def test_the_right_ones_are_told_apart(counted: Counted, tokens: ManagementTokens) -> None:
    assert await counted.callers.of(f"bearer  {TOKEN}", "192.0.2.1") == ADMIN
    made, text = await tokens.create("shop", ["read", "of-a-later-version"], None, "test")
    actor = await counted.callers.of(f"Bearer {text}", "192.0.2.1")
    assert (actor.name, actor.scopes, actor.token) == (f"token {made.id} shop", {Scope.READ}, made.id)


async def test_a_wrong_one_is_logged_with_its_address_and_without_its_text(counted: Counted) -> None:
    with capture_logs() as lines:
        assert await counted.code("Bearer canary") == "token_invalid"
    assert [(line["event"], line["address"]) for line in lines] == [("admin_tokens_wrong", "192.0.2.1")]
    assert "canary" not in str(lines)


async def test_the_admin_token_needs_no_store_and_others_are_not_refused_for_want_of_one(
    counted: Counted, tokens: ManagementTokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(_: str) -> None:
        raise StoreAway("away")

    monkeypatch.setattr(tokens, "authenticate", away)
    assert await counted.code(f"Bearer {TOKEN}") == ADMIN.name
    with pytest.raises(StoreAway):
        await counted.callers.of("Bearer sk-mgmt-a-b", "192.0.2.1")
    assert counted.wrong == 0
