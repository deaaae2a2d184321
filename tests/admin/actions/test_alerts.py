"""Events of accounts and tokens: receivers that want them are told once of each change, and the list shows what became of them."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from gateway.admin.actions import accounts, alerts, tokens
from gateway.admin.actions.accounts import AccountChange, NewAccount
from gateway.admin.actions.alerts import AlertLines
from gateway.admin.actions.local import LocalClient
from gateway.admin.actions.tokens import NewToken, Rotation
from gateway.alerts.event import Outbox
from gateway.base.errors import GatewayError
from gateway.config.schema import AlertReceiver, AlertSettings
from gateway.store.pepper import VARIABLE
from tests.admin.actions.conftest import LocalClientWith

SETTINGS = AlertSettings(
    "http://127.0.0.1:9/", others={"shop": AlertReceiver("http://127.0.0.1:9/", ("account", "token"), ("default",))}
)


@pytest.fixture(autouse=True)
def pepper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "p" * 40)


def with_alerts(client: LocalClient) -> LocalClient:
    client.config = msgspec.structs.replace(client.config, alerts=SETTINGS)
    client.loaded = type(client.loaded)(client.config, client.loaded.document)
    return client


async def told(client: LocalClient, receiver: str = "shop") -> list[tuple[str, dict[str, Any]]]:
    pending = sorted((entry.id, entry) for entry, _ in await Outbox(client.store.client, receiver).pending(99))
    return [(entry.type, json.loads(entry.body)["data"]) for _, entry in pending]


async def test_each_change_of_an_account_or_a_token_is_told_once(local_client_with: LocalClientWith) -> None:
    client = with_alerts(local_client_with(""))
    await accounts.create(client, body=NewAccount("alice", external_id="cus-1"))
    for status in ("suspended", "suspended", "active", "suspended"):
        await accounts.change(client, "alice", body=AccountChange(status=status))
    await accounts.change(client, "alice", body=AccountChange(status="active", name="Alice"))
    await accounts.change(client, "alice", body=AccountChange(name="Alice B."))
    repeated = with_alerts(local_client_with("one"))
    made, _ = [await tokens.create(repeated, "alice", body=NewToken()) for _ in range(2)]
    await tokens.disable(client, made.id)
    await tokens.enable(client, made.id)
    other = await tokens.rotate(client, made.id, body=Rotation(0))
    await tokens.delete(client, other.id)
    await accounts.close(client, "alice")
    await accounts.close(client, "alice")
    found = await told(client)
    assert [kind for kind, _ in found] == [
        *("account.created", "account.suspended", "account.resumed", "account.suspended", "account.resumed"),
        *("token.created", "token.disabled", "token.enabled", "token.created", "token.deleted"),
        "account.closed",
    ]
    assert {(data["account"], data["group"], data["external_id"]) for _, data in found} == {
        ("alice", "default", "cus-1")
    }
    assert [data["token"] for kind, data in found if kind == "token.created"] == [made.id, other.id]
    assert made.token is not None and made.token not in repr(found)
    assert await told(client, "") == [], "the first receiver did not ask for them"


async def test_an_account_of_another_group_and_a_refused_change_are_told_to_nobody(local_client: LocalClient) -> None:
    client = with_alerts(local_client)
    await accounts.create(client, body=NewAccount("bobby", group="trial"))
    with pytest.raises(GatewayError):
        await accounts.create(client, body=NewAccount("bobby"))
    with pytest.raises(GatewayError):
        await tokens.delete(client, "nobody-x")
    assert await told(client) == []


async def test_the_list_has_what_waits_and_what_ended(local_client: LocalClient) -> None:
    with pytest.raises(GatewayError, match="no `alerts:`"):
        await alerts.list_(local_client, query=AlertLines())
    client = with_alerts(local_client)
    for name in ("alice", "bobby", "carol"):
        await accounts.create(client, body=NewAccount(name))
    outbox = Outbox(client.store.client, "shop")
    _, due = await outbox.take(2, 10_000)
    for taken, error in zip(due, ("", "it answered 500"), strict=True):
        await outbox.report(taken, msgspec.structs.replace(taken.entry, attempts=1, error=error))
    page = await alerts.list_(client, query=AlertLines())
    assert sorted((each.state, each.receiver, each.error) for each in page.data) == [
        ("given_up", "shop", "it answered 500"),
        ("pending", "shop", ""),
        ("sent", "shop", ""),
    ]
    assert [bool(each.due_at) for each in page.data] == [each.state == "pending" for each in page.data]
    assert [bool(each.ended_at) for each in page.data] == [each.state != "pending" for each in page.data]
    (sent,) = (await alerts.list_(client, query=AlertLines(state="sent"))).data
    assert sent.type == "account.created"
    assert len((await alerts.list_(client, query=AlertLines(limit=2))).data) == 2
