"""A write that is repeated with its key is done once, however often and whenever it is sent."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.admin.actions import accounts
from gateway.admin.actions.local import LocalClient
from gateway.admin.actions.management_tokens import ManagementTokenList, list_
from gateway.base.errors import StoreAway
from tests.admin.http.conftest import TOKEN, Client, call


async def repeated(client: Client, path: str, body: Any, key: str, token: str = TOKEN, method: str = "POST") -> Any:
    """Return the status and the body."""
    return await call(client, method, path, body, token, Idempotency_Key=key)


async def test_a_repeated_creation_has_what_it_made_and_is_done_once(api: Client) -> None:
    status, first = await repeated(api, "/accounts", {"id": "alice"}, "one")
    assert status == 201
    await call(api, "PATCH", "/accounts/alice", {"status": "suspended"})
    assert await repeated(api, "/accounts", {"id": "alice"}, "one") == (201, first | {"status": "suspended"})
    assert (await repeated(api, "/accounts", {"id": "alice"}, "two"))[1]["error"]["code"] == "exists"
    assert (await call(api, "POST", "/accounts", {"id": "alice"}))[1]["error"]["code"] == "exists"


async def test_the_same_body_in_other_words_is_the_same(api: Client) -> None:
    first = await repeated(api, "/accounts", {"id": "alice", "group": "default"}, "one")
    assert await repeated(api, "/accounts", {"group": "default", "id": "alice"}, "one") == first


async def test_a_key_is_for_one_request_of_one_token_alone(api: Client) -> None:
    _, made = await call(api, "POST", "/management-tokens", {"name": "shop", "scopes": ["accounts", "tokens"]})
    await repeated(api, "/accounts", {"id": "alice"}, "one")
    assert (await repeated(api, "/accounts", {"id": "robert"}, "one"))[0] == 201
    status, said = await repeated(api, "/accounts", {"id": "alice"}, "one", made["token"])
    assert (status, said["error"]["code"]) == (409, "exists")
    given = [({}, TOKEN), ({}, made["token"]), ({"name": "x"}, TOKEN)]
    made_ids = {(await repeated(api, "/accounts/alice/tokens", each[0], "one", each[1]))[1]["id"] for each in given}
    assert len(made_ids) == 3


async def test_what_is_refused_can_be_sent_again_with_its_key(api: Client) -> None:
    credit = {"transaction": "t", "amount_micros": 5}
    assert (await repeated(api, "/accounts/alice/credits", credit, "one"))[0] == 404
    assert (await repeated(api, "/accounts/alice/credits", credit | {"amount_micros": 0}, "one"))[0] == 400
    await call(api, "POST", "/accounts", {"id": "alice"})
    assert (await repeated(api, "/accounts/alice/credits", credit, "one"))[1]["balance_micros"] == 5


async def test_the_text_of_a_token_is_in_the_first_answer_alone(api: Client, local_client: LocalClient) -> None:
    await call(api, "POST", "/accounts", {"id": "alice"})
    for path, body in (
        ("/accounts/alice/tokens", {"name": "laptop"}),
        ("/management-tokens", {"name": "shop", "scopes": ["read"]}),
    ):
        _, first = await repeated(api, path, body, path)
        assert await repeated(api, path, body, path) == (201, first | {"token": None})
        async for key in local_client.store.client.keys("*"):
            for form in (("GET", key), ("HGETALL", key), ("XRANGE", key, "-", "+"), ("ZRANGE", key, 0, -1)):
                try:
                    assert first["token"] not in str(await local_client.store.client.call(*form))
                except Exception as error:
                    assert "WRONGTYPE" in str(error) or "wrong kind" in str(error), error
    assert len((await call(api, "GET", "/accounts/alice/tokens"))[1]["data"]) == 1


async def test_fifty_at_once_with_one_key_are_one(api: Client, local_client: LocalClient) -> None:
    await call(api, "POST", "/accounts", {"id": "alice"})
    answers = await asyncio.gather(
        *(repeated(api, "/accounts/alice/tokens", {"name": "laptop"}, "one") for _ in range(50))
    )
    assert {status for status, _ in answers} == {201}
    assert len([said for _, said in answers if said["token"]]) == 1
    assert len({said["id"] for _, said in answers}) == 1
    assert len((await call(api, "GET", "/accounts/alice/tokens"))[1]["data"]) == 1
    made = await asyncio.gather(
        *(repeated(api, "/management-tokens", {"name": "shop", "scopes": ["read"]}, "two") for _ in range(50))
    )
    assert sum(status == 201 and said["token"] is not None for status, said in made) == 1
    assert len((await list_(local_client, query=ManagementTokenList())).data) == 1


@pytest.mark.parametrize("key", ["", " ", "x" * 256, "schlüssel", "a\tb"])
async def test_what_is_no_key_is_refused(api: Client, key: str) -> None:
    status, said = await repeated(api, "/accounts", {"id": "alice"}, key)
    assert (status, said["error"]["param"]) == (400, "Idempotency-Key")
    assert (await call(api, "GET", "/accounts/alice"))[0] == 404


async def test_a_key_of_a_read_is_not_kept(api: Client) -> None:
    await call(api, "POST", "/accounts", {"id": "alice"})
    for path in ("/accounts", "/accounts/alice"):
        assert (await repeated(api, path, None, "one", method="GET"))[0] == 200


async def test_a_write_whose_store_went_away_is_done_once_when_it_is_repeated(
    api: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = accounts.create.function

    async def lost(*given: Any, **named: Any) -> Any:
        await run(*given, **named)
        raise StoreAway("the answer was lost")

    monkeypatch.setattr(accounts.create, "function", lost)
    status, said = await repeated(api, "/accounts", {"id": "alice"}, "one")
    assert (status, said["error"]["code"]) == (503, "service_unavailable")
    monkeypatch.setattr(accounts.create, "function", run)
    status, said = await repeated(api, "/accounts", {"id": "alice"}, "one")
    assert (status, said["id"]) == (201, "alice")


async def test_a_caller_that_leaves_ends_no_write(api: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    run, begun, going, done = accounts.create.function, asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def slow(*given: Any, **named: Any) -> Any:
        begun.set()
        await going.wait()
        try:
            return await run(*given, **named)
        finally:
            done.set()

    monkeypatch.setattr(accounts.create, "function", slow)
    task = asyncio.create_task(repeated(api, "/accounts", {"id": "alice"}, "one"))
    await begun.wait()
    task.cancel()
    await asyncio.wait((task,))
    going.set()
    await done.wait()
    assert (await call(api, "GET", "/accounts/alice"))[0] == 200
