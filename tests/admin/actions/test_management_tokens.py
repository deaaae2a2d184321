"""A management token gives no more than the one that made it has, and nothing after it is revoked or has expired."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from gateway.admin.actions import management_tokens
from gateway.admin.actions import management_tokens as stored
from gateway.admin.actions.action import Actor, Scope
from gateway.admin.actions.local import LocalClient
from gateway.admin.actions.management_tokens import KEY, ManagementTokenList, ManagementTokens, NewManagementToken
from gateway.base.errors import GatewayError, Refused
from tests.admin.actions.conftest import LocalClientWith

SECOND = timedelta(seconds=1)


def new(name: str = "shop", *scopes: Scope, **more: Any) -> NewManagementToken:
    return NewManagementToken(name, scopes or (Scope.READ,), **more)


async def client_of(local_client: LocalClient, text: str | None) -> LocalClient:
    """Return the client of actions of whoever has a token with this text."""
    token = await ManagementTokens(local_client.store.client).authenticate(text or "")
    assert token is not None
    return LocalClient(
        local_client.loaded, local_client.store, Actor(token.name, frozenset(map(Scope, token.scopes)), token.id)
    )


async def test_a_token_is_accepted_until_it_is_revoked_and_only_its_digest_is_stored(local_client: LocalClient) -> None:
    known = ManagementTokens(local_client.store.client)
    made = await management_tokens.create(local_client, body=new("shop", Scope.MONEY, Scope.ACCOUNTS, Scope.MONEY))
    assert made.token is not None
    assert (made.scopes, made.made_by) == (("accounts", "money"), "test")
    assert made.token not in repr(made)
    assert made.token.encode() not in b"".join(await local_client.store.client.call("HVALS", KEY))
    found = await known.authenticate(made.token)
    assert found is not None
    assert found.id == made.id
    for wrong in (made.token[:-1], made.token + "x", made.token.upper(), "", "sk-mgmt-", f"sk-mgmt-{made.id}-", "sk-ü"):
        assert await known.authenticate(wrong) is None
    listed = await management_tokens.list_(local_client, query=ManagementTokenList())
    assert [token.id for token in listed.data] == [made.id]
    assert made.token not in msgspec.json.encode(listed).decode()
    await management_tokens.revoke(local_client, made.id)
    assert await known.authenticate(made.token) is None
    with pytest.raises(GatewayError) as caught:
        await management_tokens.revoke(local_client, made.id)
    assert caught.value.kind == "not_found"


async def test_a_token_cannot_give_scopes_that_it_does_not_have(local_client: LocalClient) -> None:
    made = await management_tokens.create(local_client, body=new("admin", Scope.ADMIN, Scope.READ))
    admin = await client_of(local_client, made.token)
    assert (await management_tokens.create(admin, body=new("reader"))).scopes == ("read",)
    with pytest.raises(Refused) as caught:
        await management_tokens.create(admin, body=new("more", Scope.READ, Scope.MONEY))
    assert (caught.value.code, caught.value.param) == ("scope_missing", "scopes")
    reader = await client_of(local_client, (await management_tokens.create(local_client, body=new())).token)
    with pytest.raises(Refused):
        await management_tokens.create(reader, body=new())


async def test_a_token_that_expires_makes_none_that_lasts_longer(local_client: LocalClient) -> None:
    soon = datetime.now(UTC).replace(microsecond=0) + 1000 * SECOND
    made = await management_tokens.create(local_client, body=new("admin", *Scope, expires_at=soon))
    admin = await client_of(local_client, made.token)
    assert (await management_tokens.create(admin, body=new())).expires_at == soon
    assert (await management_tokens.create(admin, body=new(expires_at=soon - SECOND))).expires_at == soon - SECOND
    with pytest.raises(Refused) as caught:
        await management_tokens.create(admin, body=new(expires_at=soon + SECOND))
    assert caught.value.param == "expires_at"
    with pytest.raises(Refused):
        await management_tokens.create(local_client, body=new(expires_at=datetime.now(UTC) - SECOND))


async def test_a_token_that_was_revoked_meanwhile_makes_none(local_client: LocalClient) -> None:
    made = await management_tokens.create(
        local_client, body=new("admin", *Scope, expires_at=datetime.now(UTC) + 1000 * SECOND)
    )
    admin = await client_of(local_client, made.token)
    await management_tokens.revoke(local_client, made.id)
    with pytest.raises(Refused) as caught:
        await management_tokens.create(admin, body=new())
    assert caught.value.status == 401


async def test_a_token_that_has_expired_is_not_accepted(
    local_client: LocalClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await management_tokens.create(local_client, body=new(expires_at=datetime.now(UTC) + 1000 * SECOND))
    monkeypatch.setattr(time, "time", lambda: made.expires_at and made.expires_at.timestamp())
    assert await ManagementTokens(local_client.store.client).authenticate(made.token or "") is None


async def test_a_repeated_creation_makes_one_token_and_shows_it_once(local_client_with: LocalClientWith) -> None:
    key = "0123456789abcdef" * 4
    first = await management_tokens.create(local_client_with(key), body=new())
    again = await management_tokens.create(local_client_with(key), body=new())
    assert (again.id, again.token, first.token is None) == (first.id, None, False)
    assert len((await management_tokens.list_(local_client_with(""), query=ManagementTokenList())).data) == 1


async def test_there_are_not_too_many(local_client: LocalClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "MAX_TOKENS", 2)
    for _ in range(2):
        await management_tokens.create(local_client, body=new())
    with pytest.raises(GatewayError, match="revoke some"):
        await management_tokens.create(local_client, body=new())
    first = await management_tokens.list_(local_client, query=ManagementTokenList(1))
    assert (len(first.data), first.has_more) == (1, True)
    second = await management_tokens.list_(local_client, query=ManagementTokenList(1, first.next or ""))
    assert (len(second.data), second.has_more, second.next) == (1, False, None)


@pytest.mark.parametrize(
    "fields",
    [
        {"scopes": []},
        {"scopes": ["root"]},
        {"name": ""},
        {"name": "x" * 201},
        {"expires_at": -1},
        {"expires_at": "2100-01-01T00:00:00"},
    ],
)
def test_what_makes_no_token_is_refused(fields: Any) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"name": "shop", "scopes": ["read"], **fields}, NewManagementToken)
