"""Of all attempts with one key, one works at a time, and its answer is that of all."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.admin.actions import accounts
from gateway.admin.actions.action import IN_USE
from gateway.admin.actions.local import LocalClient
from gateway.admin.actions.management_tokens import ManagementTokenList, list_
from gateway.admin.http import idempotency
from gateway.admin.http.idempotency import KEPT_S, PREFIX, Begun, Idempotency
from gateway.base.errors import StoreAway
from gateway.store.client.client import Client
from tests.admin.http.conftest import Client as ApiClient
from tests.admin.http.conftest import call
from tests.patience import PATIENCE_S, wait_until


async def check(client: Client) -> None:
    """Go through all that may become of a key."""
    known, other = Idempotency(client, "one", "a"), Idempotency(client, "one", "b")
    begun = await asyncio.gather(*(Idempotency(client, "one", "a").begin() for _ in range(50)))
    assert sorted(state for state, _ in begun) == [Begun.BEGUN, *[Begun.IN_USE] * 49]
    assert (await other.begin())[0] is Begun.REUSED
    (key,) = [key async for key in client.keys(f"{PREFIX}*")]
    assert "one" not in key.removeprefix(PREFIX)
    assert KEPT_S - 60 < await client.call("TTL", key) <= KEPT_S
    await other.keep(b"of another")
    await other.forget()
    await known.end()
    assert (await known.begin())[0] is Begun.BEGUN
    await known.forget()
    assert (await other.begin())[0] is Begun.BEGUN
    await other.go_on()
    await other.keep(b"an answer")
    await other.end()
    assert await other.begin() == (Begun.ANSWERED, b"an answer")
    assert (await known.begin())[0] is Begun.REUSED


async def test_one_attempt_works_at_a_time(store_url: str) -> None:
    client = Client.connect(store_url, timeout_s=PATIENCE_S)
    await check(client)
    await client.close()


async def repeated(client: ApiClient, path: str, body: Any, key: str, token: str = "", method: str = "POST") -> Any:
    """Return the status, the body and whether it is that of an earlier request."""
    headers = (
        {"Authorization": f"Bearer {token}"} if token else {"Authorization": "Bearer an-admin-token-of-31-characters"}
    )
    headers["Idempotency-Key"] = key
    async with client.request(method, f"/api/v1{path}", json=body, headers=headers) as response:
        said = await response.json() if response.status != 204 else None
        return response.status, said, "Idempotent-Replayed" in response.headers


async def test_a_repeated_write_has_the_same_answer_and_is_done_once(api: ApiClient) -> None:
    first = await repeated(api, "/accounts", {"id": "alice"}, "one")
    assert (first[0], first[2]) == (201, False)
    await call(api, "PATCH", "/accounts/alice", {"status": "suspended"})
    assert await repeated(api, "/accounts", {"id": "alice"}, "one") == (201, first[1], True)
    assert (await repeated(api, "/accounts", {"id": "alice"}, "two"))[1]["error"]["code"] == "exists"
    assert (await call(api, "POST", "/accounts", {"id": "alice"}))[1]["error"]["code"] == "exists"


async def test_the_same_body_in_other_words_is_the_same(api: ApiClient) -> None:
    first = await repeated(api, "/accounts", {"id": "alice", "group": "default"}, "one")
    assert await repeated(api, "/accounts", {"group": "default", "id": "alice"}, "one") == (201, first[1], True)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/accounts", {"id": "robert"}),
        ("POST", "/accounts/alice/credits", {"transaction": "t", "amount_micros": 1}),
        ("PATCH", "/accounts/alice", {}),
    ],
)
async def test_a_key_is_for_one_request_alone(api: ApiClient, method: str, path: str, body: Any) -> None:
    await repeated(api, "/accounts", {"id": "alice"}, "one")
    status, said, _ = await repeated(api, path, body, "one", method=method)
    assert (status, said["error"]["code"], said["error"]["param"]) == (409, "idempotency_key_reused", "Idempotency-Key")
    assert (await call(api, "GET", "/accounts/robert"))[0] == 404


async def test_a_key_is_for_one_token_alone(api: ApiClient) -> None:
    _, made = await call(api, "POST", "/management-tokens", {"name": "shop", "scopes": ["accounts"]})
    await repeated(api, "/accounts", {"id": "alice"}, "one")
    status, said, _ = await repeated(api, "/accounts", {"id": "alice"}, "one", made["token"])
    assert (status, said["error"]["code"]) == (409, "idempotency_key_reused")


async def test_what_is_refused_can_be_sent_again_with_its_key(api: ApiClient) -> None:
    credit = {"transaction": "t", "amount_micros": 5}
    assert (await repeated(api, "/accounts/alice/credits", credit, "one"))[0] == 404
    assert (await repeated(api, "/accounts/alice/credits", credit | {"amount_micros": 0}, "one"))[0] == 400
    await call(api, "POST", "/accounts", {"id": "alice"})
    assert (await repeated(api, "/accounts/alice/credits", credit, "one"))[1]["balance_micros"] == 5


async def test_the_text_of_a_token_is_in_the_first_answer_alone(api: ApiClient, local_client: LocalClient) -> None:
    await call(api, "POST", "/accounts", {"id": "alice"})
    for path, body in (
        ("/accounts/alice/tokens", {"name": "laptop"}),
        ("/management-tokens", {"name": "shop", "scopes": ["read"]}),
    ):
        _, first, _ = await repeated(api, path, body, path)
        status, again, replayed = await repeated(api, path, body, path)
        assert (status, replayed, again) == (201, True, first | {"token": None})
        async for key in local_client.store.client.keys("*"):
            for form in (("GET", key), ("HGETALL", key), ("XRANGE", key, "-", "+"), ("ZRANGE", key, 0, -1)):
                try:
                    assert first["token"] not in str(await local_client.store.client.call(*form))
                except Exception as error:
                    assert "WRONGTYPE" in str(error) or "wrong kind" in str(error), error
    assert len((await call(api, "GET", "/accounts/alice/tokens"))[1]["data"]) == 1


async def test_fifty_at_once_with_one_key_are_one(api: ApiClient, local_client: LocalClient) -> None:
    await call(api, "POST", "/accounts", {"id": "alice"})
    answers = await asyncio.gather(
        *(repeated(api, "/accounts/alice/tokens", {"name": "laptop"}, "one") for _ in range(50))
    )
    done = [said for status, said, _ in answers if status == 201]
    assert len([said for said in done if said["token"]]) == 1
    assert {said["id"] for said in done} == {done[0]["id"]}
    assert {said["error"]["code"] for status, said, _ in answers if status != 201} <= {IN_USE}
    assert len((await call(api, "GET", "/accounts/alice/tokens"))[1]["data"]) == 1
    made = await asyncio.gather(
        *(repeated(api, "/management-tokens", {"name": "shop", "scopes": ["read"]}, "two") for _ in range(50))
    )
    assert sum(status == 201 and said["token"] is not None for status, said, _ in made) == 1
    assert len((await list_(local_client, query=ManagementTokenList())).data) == 1


@pytest.mark.parametrize("key", ["", " ", "x" * 256, "schlüssel", "a\tb"])
async def test_what_is_no_key_is_refused(api: ApiClient, key: str) -> None:
    status, said, _ = await repeated(api, "/accounts", {"id": "alice"}, key)
    assert (status, said["error"]["param"]) == (400, "Idempotency-Key")
    assert (await call(api, "GET", "/accounts/alice"))[0] == 404


async def test_a_key_of_a_read_is_not_kept(api: ApiClient) -> None:
    await call(api, "POST", "/accounts", {"id": "alice"})
    for path in ("/accounts", "/accounts/alice"):
        assert (await repeated(api, path, None, "one", method="GET"))[0] == 200


async def test_a_key_that_a_killed_attempt_has_is_free_after_a_while_for_the_same_request(
    local_client: LocalClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idempotency, "LEASE_MS", 300)
    client = local_client.store.client
    killed, other = Idempotency(client, "one", "a"), Idempotency(client, "one", "b")
    assert (await killed.begin())[0] is Begun.BEGUN
    assert (await Idempotency(client, "one", "a").begin())[0] is Begun.IN_USE
    await asyncio.sleep(0.4)
    assert (await other.begin())[0] is Begun.REUSED
    assert (await Idempotency(client, "one", "a").begin())[0] is Begun.BEGUN
    await killed.keep(b"answer")
    await killed.forget()
    assert await Idempotency(client, "one", "a").begin() == (Begun.ANSWERED, b"answer")
    assert (await other.begin())[0] is Begun.REUSED


async def test_a_long_operation_keeps_its_key(
    api: ApiClient, local_client: LocalClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idempotency, "LEASE_MS", 30)
    renewed = 0
    go_on = Idempotency.go_on

    async def counted(self: Idempotency) -> None:
        nonlocal renewed
        renewed += 1
        await go_on(self)

    monkeypatch.setattr(Idempotency, "go_on", counted)
    run, going = accounts.create.function, asyncio.Event()

    async def slow(*given: Any, **named: Any) -> Any:
        await going.wait()
        return await run(*given, **named)

    monkeypatch.setattr(accounts.create, "function", slow)
    task = asyncio.create_task(repeated(api, "/accounts", {"id": "alice"}, "one"))
    await wait_until(lambda: renewed > 2)
    status, said, _ = await repeated(api, "/accounts", {"id": "alice"}, "one")
    assert (status, said["error"]["code"]) == (409, IN_USE)
    going.set()
    assert (await task)[0] == 201


async def test_a_write_whose_store_went_away_is_free_for_the_same_request_at_once(
    api: ApiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = accounts.create.function

    async def lost(*given: Any, **named: Any) -> Any:
        await run(*given, **named)
        raise StoreAway("the answer was lost")

    monkeypatch.setattr(accounts.create, "function", lost)
    status, said, _ = await repeated(api, "/accounts", {"id": "alice"}, "one")
    assert (status, said["error"]["code"]) == (503, "service_unavailable")
    monkeypatch.setattr(accounts.create, "function", run)
    assert (await repeated(api, "/accounts", {"id": "robert"}, "one"))[0] == 409
    status, said, replayed = await repeated(api, "/accounts", {"id": "alice"}, "one")
    assert (status, said["id"], replayed) == (201, "alice", False)


async def test_a_caller_that_leaves_ends_no_write(api: ApiClient, monkeypatch: pytest.MonkeyPatch) -> None:
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
