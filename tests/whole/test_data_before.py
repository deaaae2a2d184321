"""A data folder that the version before the packages were rearranged left in the middle of its work is read by this one.

`tests/fixtures/data-95e8e78/README.md` says what is in it. Only what is promised to stay is used here.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest

from tests.whole.old_data import FIXTURE, OldData, Raw, money, state, usage
from tests.whole.raw import Answer, ask, chat, get

EXPECTED: Final[dict[str, Any]] = json.loads((FIXTURE / "expected.json").read_text())
TOKENS: Final[dict[str, str]] = EXPECTED["tokens"]
CHARGE: Final = 1 + 2 * 12
"""Micros for the model `words`: one word asked, and twelve of the fake upstream."""

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="a killed gateway's store is found by its lock on Linux"
)


@pytest.fixture
def old(tmp_path: Path) -> OldData:
    data = OldData(tmp_path)
    data.unpack()
    return data


def same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Part by part, so that a failure names the part."""
    assert found.keys() == expected.keys()
    for name, part in expected.items():
        assert found[name] == part, name


async def test_every_command_tells_what_it_told_before(old: OldData) -> None:
    expected = EXPECTED["stopped"]
    found = await usage(old) | await state(old, list(expected["tokens"]))
    (erin,) = await old.told("account", "show", "erin", "--json")
    assert erin["holds"] == 1, "before anything that ends what is over"
    in_file = max(expected["records"])
    (shown,) = await old.told("usage", "show", in_file, "--json")
    assert shown == expected["records"][in_file]
    in_stream = min(EXPECTED["served"]["records"].keys() - expected["records"].keys())
    (shown,) = await old.told("usage", "show", in_stream, "--json")
    assert shown == EXPECTED["served"]["records"][in_stream]
    assert in_stream in await old.tell("trace", in_stream)
    listed = await old.told("usage", "list", "--account", "alice", "--limit", "1000", "--json")
    of_alice = [record for record in expected["records"].values() if record["account"] == "alice"]
    assert listed == sorted(of_alice, key=lambda record: str(record["id"]), reverse=True)
    found |= await money(old)
    same(found, expected)
    assert found["verify"]["wrong"] == found["verify with the archive"]["wrong"] == []
    assert found["verify"]["expired"], "the hold of a gateway that was killed"
    assert found["verify"]["stale"] == [["bob", EXPECTED["late"]["rid"]]]
    assert found["verify"]["unread"] == found["verify with the archive"]["lines"] - found["verify"]["lines"] > 0


async def test_served_again_it_goes_on_where_it_was(old: OldData) -> None:
    async with old.upstream("GOOD"), old.serving() as process:
        await old.settled()
        await as_before(old)
        with old.store() as store:
            each_charged_once(store)
        await used(old)
        await old.settled()
        with old.store() as store:
            assert_keys(store)
        process.terminate()
        assert await process.wait() == 0
    await archived_on(old)


async def as_before(old: OldData) -> None:
    """All that waited has arrived, and the books are those that the old version came to with this folder."""
    expected = EXPECTED["served"] | {"records": dict(EXPECTED["served"]["records"])}
    found = await usage(old) | await money(old)
    for records in (found["records"], expected["records"]):
        unended = records.pop(EXPECTED["open"], None)
        assert unended is not None
        assert unended["outcome"] in (None, "gateway_crashed"), "the latter a minute after the start"
    same(found, expected)
    assert EXPECTED["asked"].keys() <= {*found["records"], EXPECTED["open"]}
    for request, record in found["records"].items():
        if record["outcome"] != "gateway_crashed":
            assert EXPECTED["asked"].get(request) == record["status"], request
    assert found["verify"]["wrong"] == found["verify with the archive"]["wrong"] == []
    waited = Counter[str]()
    for settlement in EXPECTED["journal"]:
        waited[settlement["account"]] += settlement["cost"]
        assert found["records"][settlement["rid"]]["charge_micros"] == settlement["cost"] > 0
    for account in found["accounts"]:
        name = account["id"]
        lines = [fields for _, fields in EXPECTED["ledger"][name]]
        first = sum(int(line["amount"]) for line in lines) + archived_of(old, name)
        assert name == "erin" or account["balance_micros"] == first - waited[name], name
        assert (account["held_micros"], account["holds"]) == (0, 0)


def archived_of(old: OldData, account: str) -> int:
    """What the account's archived lines come to."""
    file = old.archive / f"{account}.jsonl"
    return sum(json.loads(line)["amount"] for line in file.read_text().splitlines()) if file.exists() else 0


def each_charged_once(store: Raw) -> None:
    """The old lines are there as they were, and behind them the journal's charges and the end of the open hold."""
    ends: dict[str, list[int]] = {}
    for account, before in EXPECTED["ledger"].items():
        now = store.ledger(account)
        assert now[: len(before)] == before, account
        for _, fields in now[len(before) :]:
            ends.setdefault(fields["id"], []).append(-int(fields["amount"]))
    due = {settlement["rid"]: settlement["cost"] for settlement in EXPECTED["journal"]}
    assert ends.keys() == {*due, EXPECTED["open"]}
    assert {request: sum(ends[request]) for request in due} == due
    assert len(ends[EXPECTED["open"]]) == 1


def assert_keys(store: Raw) -> None:
    """No other keys than the known ones, and of these still all that last."""
    found = store.patterns()
    assert found.items() <= EXPECTED["keys"].items()
    assert EXPECTED["lasting"].items() <= found.items()
    assert store.fields() == EXPECTED["fields"]


async def used(old: OldData) -> None:
    """Old tokens are served and charged, or refused for what was written of them and their accounts."""

    async def said(token: str, model: str = "words") -> Answer:
        return await ask(old.ports["PUBLIC"], chat(TOKENS.get(token, token), {"model": model}))

    before = {account["id"]: account["balance_micros"] for account in await old.told("account", "list", "--json")}
    for token in ("laptop", "local", "bob", "ci"):
        answer = await said(token)
        assert (answer.status, answer.whole) == (200, True), answer
        assert answer.body.endswith(b"data: [DONE]\n\n")
    for token, model, status, code in (
        ("expired", "words", 401, "token_expired"),
        ("disabled", "words", 401, "token_disabled"),
        (f"{TOKENS['laptop'][:-1]}!", "words", 401, "token_invalid"),
        ("lan", "words", 403, "token_restricted"),
        ("ci", "dear", 403, "token_restricted"),
        ("bob", "dear", 404, "model_not_found"),
        ("carol", "gift", 403, "account_inactive"),
        ("dave", "words", 403, "account_inactive"),
        ("frank", "words", 402, "insufficient_balance"),
        ("grace", "words", 429, "rate_limited"),
        ("ivan", "words", 429, "rate_limited"),
        ("heidi", "words", 429, "too_many_concurrent"),
        ("laptop", "switched-off", 503, "model_unavailable"),
        ("laptop", "narrow", 503, "model_unavailable"),
        ("laptop", "minute", 503, "model_unavailable"),
    ):
        answer = await said(token, model)
        assert answer.status == status, (token, model, answer)
        assert answer.error["code"] == code, (token, model)
    now = {account["id"]: account["balance_micros"] for account in await old.told("account", "list", "--json")}
    assert {name: before[name] - now[name] for name in now if before[name] != now[name]} == {
        "alice": 3 * CHARGE,
        "bob": CHARGE,
    }
    await callers_own(old, now["alice"])
    await operators_port(old)


async def callers_own(old: OldData, balance: int) -> None:
    """A caller finds each of its requests, and nobody else's."""
    port, token = old.ports["PUBLIC"], TOKENS["laptop"]
    told = json.loads((await ask(port, get("/v1/account", token))).body)
    assert balance in told.values(), told
    for request, record in EXPECTED["served"]["records"].items():
        if request in EXPECTED["asked"] and request != EXPECTED["open"]:
            answer = await ask(port, get(f"/v1/requests/{request}", token))
            assert answer.status == (200 if record["account"] == "alice" else 404), record
            assert answer.status == 404 or json.loads(answer.body)["id"] == request


async def operators_port(old: OldData) -> None:
    """The admin port takes the token that is in the folder."""
    token = (old.data / "admin.token").read_text().strip()
    summary = get("/usage/summary?by=account&to=2025-08-31", token)
    answer = await ask(old.ports["ADMIN"], summary)
    assert answer.status == 200, answer
    assert {total["account"] for total in json.loads(answer.body)} >= {"alice", "bob", "carol", "dave", "erin"}


async def archived_on(old: OldData) -> None:
    """The rest of the old lines follows into the same archive, and the books are right with and without it."""
    before = await money(old)
    files = {file: file.read_bytes() for file in old.archive.iterdir()}
    await old.tell("account", "archive", "--all", "--before", "2025-11-10", "--to", "archive")
    for file, text in files.items():
        assert file.read_bytes().startswith(text)
    after = await money(old)
    assert after["accounts"] == before["accounts"]
    moved = sum(map(len, EXPECTED["ledger"].values()))
    assert after["verify"]["unread"] == before["verify"]["unread"] + moved
    assert after["verify with the archive"] == before["verify with the archive"]
    assert after["verify"]["wrong"] == after["verify with the archive"]["wrong"] == []
