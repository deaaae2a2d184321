"""Tokens are shown once, and a creation or a rotation that is repeated with its key makes no second one."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from gateway.admin.actions import accounts, management_tokens, tokens
from gateway.admin.actions.accounts import NewAccount
from gateway.admin.actions.action import Scope
from gateway.admin.actions.audit_log import KEY
from gateway.admin.actions.local import LocalClient
from gateway.admin.actions.management_tokens import NewManagementToken
from gateway.admin.actions.tokens import NewToken, Rotation, TokenChange, TokenList
from gateway.base.errors import GatewayError, Refused
from gateway.store.pepper import VARIABLE
from gateway.store.tokens import TokenRefused
from tests.admin.actions.conftest import LocalClientWith


@pytest.fixture(autouse=True)
async def alice(monkeypatch: pytest.MonkeyPatch, local_client: LocalClient) -> None:
    monkeypatch.setenv(VARIABLE, "p" * 40)
    await accounts.create(local_client, body=NewAccount("alice"))


async def ids(local_client: LocalClient, account: str = "alice", **query: Any) -> list[str]:
    """Return the ids of all pages of the tokens of an account, or of all accounts."""
    found, after = [], ""
    while True:
        given = msgspec.convert({"after": after, **query}, TokenList)
        page = await (
            tokens.list_(local_client, account, query=given) if account else tokens.list_all(local_client, query=given)
        )
        found += [token.id for token in page.data]
        if page.next is None:
            return found
        after = page.next


async def refused(work: Any) -> str:
    with pytest.raises(GatewayError) as caught:
        await work
    return caught.value.kind


async def works(local_client: LocalClient, text: str | None) -> bool:
    assert text is not None
    try:
        await local_client.store.tokens.authenticate(text)
    except TokenRefused:
        return False
    return True


async def test_a_creation_that_is_repeated_with_its_key_tells_the_id_without_the_text(
    local_client_with: LocalClientWith,
) -> None:
    first = await tokens.create(local_client_with("one"), "alice", body=NewToken("laptop"))
    assert await works(local_client_with(""), first.token)
    again = await tokens.create(local_client_with("one"), "alice", body=NewToken("laptop"))
    assert (again.id, again.token, again.name) == (first.id, None, "laptop")
    assert await works(local_client_with(""), first.token)
    others = [await tokens.create(local_client_with(key), "alice", body=NewToken()) for key in ("two", "", "")]
    assert len({first.id, *(other.id for other in others)}) == 4
    assert len(await ids(local_client_with(""))) == 4


async def test_a_rotation_that_is_repeated_with_its_key_makes_one_successor(local_client_with: LocalClientWith) -> None:
    local_client = local_client_with("")
    old = await tokens.create(local_client, "alice", body=NewToken("laptop"))
    made = await asyncio.gather(
        *(tokens.rotate(local_client_with("k"), old.id, body=Rotation(overlap_s=3600)) for _ in range(10)),
        return_exceptions=True,
    )
    successors = [each for each in made if isinstance(each, tokens.MadeToken)]
    assert len({each.id for each in successors}) == 1
    (text,) = [each.token for each in successors if each.token is not None]
    assert await works(local_client, text)
    assert await works(local_client, old.token)
    again = await tokens.rotate(local_client_with("k"), old.id, body=Rotation(overlap_s=3600))
    assert (again.id, again.token, again.replaces) == (successors[0].id, None, old.id)
    assert await refused(tokens.rotate(local_client_with("other"), old.id, body=Rotation(overlap_s=0))) == "refused"
    assert len(await ids(local_client)) == 2


async def test_tokens_are_listed_by_pages_of_one_account_or_of_all(local_client: LocalClient) -> None:
    for account in ("bob", "carol", "dave"):
        await accounts.create(local_client, body=NewAccount(account))
    for account in ("dave", "alice", "bob", "alice", "dave", "dave"):
        await tokens.create(local_client, account, body=NewToken())
    for account in ("alice", "bob", "carol", "dave"):
        assert await ids(local_client, account, limit=1) == await ids(local_client, account)
    every = [each for account in ("alice", "bob", "dave") for each in await ids(local_client, account)]
    for limit in range(1, 8):
        assert await ids(local_client, "", limit=limit) == every
    assert len(every) == 6
    assert await refused(tokens.list_(local_client, "nobody", query=TokenList())) == "not_found"
    for after in ("x", ":", "²:a", "alice:1"):
        assert await refused(tokens.list_all(local_client, query=TokenList(after=after))) == "refused"
    assert (await tokens.list_all(local_client, query=TokenList(after="1:zzz-1"))).data == []


async def test_no_line_of_the_audit_log_has_the_text_of_a_token(local_client: LocalClient) -> None:
    made = await tokens.create(local_client, "alice", body=NewToken())
    rotated = await tokens.rotate(
        local_client, made.id, body=Rotation(overlap_s=0, expires_at=datetime.now(UTC) + timedelta(minutes=1))
    )
    lines = repr(await local_client.store.client.call("XRANGE", KEY, "-", "+"))
    assert made.id in lines
    for text in (made.token, rotated.token):
        assert text is not None
        assert text not in lines
        assert text[-28:] not in lines


@pytest.mark.parametrize("name", ["phone\nalice-aaaaaaaa", "a\tb", "\x1b[31m", "\u202e"])
async def test_a_name_that_would_look_like_another_line_is_refused(local_client: LocalClient, name: str) -> None:
    with pytest.raises(Refused, match="no line ends"):
        await tokens.create(local_client, "alice", body=NewToken(name=name))
    made = await tokens.create(local_client, "alice", body=NewToken(name="Émile 📱"))
    with pytest.raises(Refused, match="no line ends"):
        await tokens.change(local_client, made.id, body=TokenChange(name=name))
    with pytest.raises(Refused, match="no line ends"):
        await management_tokens.create(local_client, body=NewManagementToken(name, (Scope.READ,)))
