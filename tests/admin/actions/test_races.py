"""Many clients at once: one transaction is one line of the ledger, one key is one token, one name is one account's."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import aiohttp
import msgspec
import pytest

from gateway.admin.actions import accounts
from gateway.admin.actions.accounts import AccountChange, NewAccount
from gateway.admin.actions.local import LocalClient
from gateway.admin.http.port import serving
from gateway.store.pepper import VARIABLE
from tests.admin.actions.api_process import TOKEN
from tests.admin.actions.test_remote import app_of
from tests.patience import PATIENCE_S

AT_ONCE = 50
Answers = list[tuple[int, Any]]


async def sent_at_once(local_client: LocalClient, path: str, bodies: list[Any], key: Callable[[int], str]) -> Answers:
    """Send all of them at once to two APIs of one store, and return the answers."""
    async with (
        serving(app_of(local_client), "127.0.0.1:0") as one,
        serving(app_of(local_client), "127.0.0.1:0") as two,
        aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(PATIENCE_S)
        ) as client,
    ):

        async def send(number: int) -> tuple[int, Any]:
            url = f"http://127.0.0.1:{(one, two)[number % 2]}/api/v1{path}"
            headers = {"Authorization": f"Bearer {TOKEN}", "Idempotency-Key": key(number)}
            async with client.post(url, json=bodies[number], headers=headers) as answer:
                return answer.status, await answer.json()

        return await asyncio.gather(*map(send, range(len(bodies))))


@pytest.fixture(autouse=True)
async def alice(monkeypatch: pytest.MonkeyPatch, local_client: LocalClient) -> None:
    monkeypatch.setenv(VARIABLE, "p" * 40)
    await accounts.create(local_client, body=NewAccount("alice"))


async def test_one_transaction_id_is_one_line_of_the_ledger(local_client: LocalClient) -> None:
    body = {"transaction": "t", "amount_micros": 5}
    answers = await sent_at_once(local_client, "/accounts/alice/credits", [body] * AT_ONCE, "key {}".format)
    assert {status for status, _ in answers} == {200}
    assert [answer["booked_before"] for _, answer in answers].count(False) == 1
    page = await local_client.store.wallet.ledger("alice", 100)
    assert [(line.transaction, line.amount_micros) for line in page.lines] == [("t", 5)]
    assert await local_client.store.wallet.verify("alice") == []


async def test_one_key_is_one_token_whose_text_one_client_has(local_client: LocalClient) -> None:
    answers = await sent_at_once(local_client, "/accounts/alice/tokens", [{}] * AT_ONCE, lambda _: "the key")
    assert {status for status, _ in answers} == {201}
    made = [answer for _, answer in answers]
    assert len({each["id"] for each in made}) == 1
    assert len([each for each in made if each["token"]]) == 1
    assert len(await local_client.store.tokens.all_of("alice")) == 1


async def test_an_id_and_an_external_id_belong_to_one_account(local_client: LocalClient) -> None:
    answers = await sent_at_once(local_client, "/accounts", [{"id": "bob"}] * AT_ONCE, "key {}".format)
    assert Counter(status for status, _ in answers) == {201: 1, 409: AT_ONCE - 1}
    bodies = [{"id": f"user{number}", "external_id": "e"} for number in range(AT_ONCE)]
    answers = await sent_at_once(local_client, "/accounts", bodies, "another {}".format)
    (owner,) = [answer["id"] for status, answer in answers if status == 201]
    assert await local_client.store.external_ids.find("e") == owner
    assert len(await local_client.store.accounts.several([body["id"] for body in bodies])) == 1


async def test_changes_of_different_budgets_and_limits_at_once_are_all_done(local_client: LocalClient) -> None:
    budgets = ("day_micros", "week_micros", "month_micros", "total_micros", "requests")
    limits = ("requests_per_minute", "tokens_per_minute", "concurrent")
    names = [*(("budgets", name) for name in budgets), *(("limits", name) for name in limits)]
    for value in (7, None, 8):
        changes = [msgspec.convert({part: {name: value}}, AccountChange) for part, name in names]
        await asyncio.gather(*(accounts.change(local_client, "alice", body=change) for change in changes))
        account = await local_client.store.accounts.get("alice")
        assert account is not None
        assert set(msgspec.structs.astuple(account.budgets) + msgspec.structs.astuple(account.limits)) == {value}
