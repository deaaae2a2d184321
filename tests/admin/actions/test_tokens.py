"""Tokens are shown once, and a creation or a rotation that is repeated with its key makes no second one."""

from __future__ import annotations

import asyncio
import stat
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import ClientSession
from structlog.testing import capture_logs

from gateway.admin.actions import accounts, management_tokens, tokens
from gateway.admin.actions import management_tokens as stored
from gateway.admin.actions.accounts import NewAccount
from gateway.admin.actions.action import Actor, Scope
from gateway.admin.actions.links import AdminToken, token_of
from gateway.admin.actions.local import LocalClient
from gateway.admin.actions.management_tokens import KEY, ManagementTokenList, ManagementTokens, NewManagementToken
from gateway.admin.actions.tokens import NewToken, Rotation, TokenChange, TokenList
from gateway.admin.http.app import Admin, Callers
from gateway.admin.http.port import serving
from gateway.base.errors import GatewayError, Misconfigured, Refused
from gateway.config.schema import Config
from gateway.metrics.exporter import Exporter
from gateway.store.client.client import Client
from gateway.store.pepper import VARIABLE
from gateway.store.tokens import TokenRefused
from tests.admin.actions.conftest import LocalClientWith
from tests.admin.http.conftest import TOKEN


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


@pytest.mark.parametrize("name", ["phone\nalice-aaaaaaaa", "a\tb", "\x1b[31m", "\u202e"])
async def test_a_name_that_would_look_like_another_line_is_refused(local_client: LocalClient, name: str) -> None:
    with pytest.raises(Refused, match="no line ends"):
        await tokens.create(local_client, "alice", body=NewToken(name=name))
    made = await tokens.create(local_client, "alice", body=NewToken(name="Émile 📱"))
    with pytest.raises(Refused, match="no line ends"):
        await tokens.change(local_client, made.id, body=TokenChange(name=name))
    with pytest.raises(Refused, match="no line ends"):
        await management_tokens.create(local_client, body=NewManagementToken(name, (Scope.READ,)))


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
        *({"scopes": []}, {"scopes": ["root"]}, {"name": ""}),
        {"name": "x" * 201},
        {"expires_at": -1},
        {"expires_at": "2100-01-01T00:00:00"},
    ],
)
def test_what_makes_no_token_is_refused(fields: Any) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"name": "shop", "scopes": ["read"], **fields}, NewManagementToken)


OTHER = "another-admin-token-of-37-characters"


def test_the_token_is_made_once_and_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GATEWAY_ADMIN_TOKEN", raising=False)
    made = token_of(Config(data=str(tmp_path)))
    assert len(made) >= 32
    assert token_of(Config(data=str(tmp_path))) == made
    assert stat.S_IMODE((tmp_path / "admin.token").stat().st_mode) == 0o600
    monkeypatch.setenv("GATEWAY_ADMIN_TOKEN", TOKEN)
    assert token_of(Config(data=str(tmp_path))) == TOKEN
    monkeypatch.setenv("GATEWAY_ADMIN_TOKEN", "short")
    with pytest.raises(Misconfigured, match="too short"):
        token_of(Config(data=str(tmp_path)))


async def test_the_port_takes_a_changed_token_and_refuses_a_bad_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, client: Client
) -> None:
    monkeypatch.delenv("GATEWAY_ADMIN_TOKEN", raising=False)
    config, file = Config(data=str(tmp_path)), tmp_path / "admin.token"
    file.write_text(f"{TOKEN}\n")
    async with ClientSession() as session:

        async def status(token: str) -> int:
            async with session.get(url, headers={"Authorization": f"Bearer {token}"}) as response:
                return response.status

        with capture_logs() as lines:
            admin = Admin(Callers(AdminToken(config), ManagementTokens(client)), Exporter({}))
            async with serving(admin.application(), "127.0.0.1:0") as port:
                url = f"http://127.0.0.1:{port}/metrics"
                assert (await status(TOKEN), await status(OTHER)) == (200, 401)
                (tmp_path / "next").write_text(OTHER)
                (tmp_path / "next").replace(file)
                assert (await status(TOKEN), await status(OTHER)) == (401, 200)
                file.write_text("short")
                assert (await status("short"), await status(OTHER)) == (401, 200)
                file.unlink()
                assert (await status(OTHER), file.exists()) == (200, False)
    events: list[Any] = [line["event"] for line in lines if line["event"] != "admin_tokens_wrong"]
    assert events == ["admin_token_renewed", "admin_token_refused", "admin_token_refused"]
    assert OTHER not in str(lines)
