"""A gateway goes on with a data folder of its layout that was written before, by a gateway that was killed at work.

`tests/fixtures/data/README.md` says what is in it. The tests use stable interfaces only.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest

from tests.whole.data_folder import (
    CHARGE,
    FIXTURE,
    ON_LINUX,
    DataFolder,
    Raw,
    as_before,
    money,
    state,
    usage,
    use_up_limits,
)
from tests.whole.raw import Answer, ask, chat, get

EXPECTED: Final[dict[str, Any]] = json.loads((FIXTURE / "expected.json").read_text())
TOKENS: Final[dict[str, str]] = EXPECTED["tokens"]

pytestmark = ON_LINUX


@pytest.fixture
def folder(tmp_path: Path) -> DataFolder:
    return DataFolder.unpacked(tmp_path)


def assert_same(results: dict[str, Any], expected: dict[str, Any]) -> None:
    """Compare part by part, so that a failure names the part. Objects may have further fields."""
    assert results.keys() == expected.keys()
    for name, part in expected.items():
        if name == "records":
            assert results[name].keys() == part.keys()
        assert as_before(results[name], part) == part, name


async def test_every_command_prints_what_it_printed_before(folder: DataFolder) -> None:
    expected = EXPECTED["stopped"]
    results = await usage(folder) | await state(folder, list(expected["tokens"]))
    (erin,) = await folder.run_json("account", "show", "erin", "--json")
    assert erin["holds"] == 1, "the hold must be open until a command or a gateway ends it"
    in_file = max(expected["records"])
    (shown,) = await folder.run_json("usage", "show", in_file, "--json")
    assert as_before(shown, expected["records"][in_file]) == expected["records"][in_file]
    in_stream = min(EXPECTED["served"]["records"].keys() - expected["records"].keys())
    (shown,) = await folder.run_json("usage", "show", in_stream, "--json")
    assert as_before(shown, EXPECTED["served"]["records"][in_stream]) == EXPECTED["served"]["records"][in_stream]
    assert in_stream in await folder.run("trace", in_stream)
    listed = await folder.run_json("usage", "list", "--account", "alice", "--limit", "1000", "--json")
    of_alice = [record for record in expected["records"].values() if record["account"] == "alice"]
    of_alice.sort(key=lambda record: str(record["id"]), reverse=True)
    assert as_before(listed, of_alice) == of_alice
    results |= await money(folder)
    assert_same(results, expected)
    assert results["verify"]["wrong"] == results["verify with the archive"]["wrong"] == []
    assert results["verify"]["expired"], "the hold of the killed gateway is not reported"
    assert results["verify"]["stale"] == [["bob", EXPECTED["late"]["rid"]]]
    assert results["verify"]["unread"] == results["verify with the archive"]["lines"] - results["verify"]["lines"] > 0


async def test_a_gateway_started_on_the_folder_continues_the_work(folder: DataFolder) -> None:
    async with folder.upstream("GOOD"), folder.serving() as process:
        await folder.settled()
        await assert_as_before(folder)
        with folder.store() as store:
            assert_each_charged_once(store)
        await use_tokens(folder)
        await folder.settled()
        with folder.store() as store:
            assert_keys(store)
        process.terminate()
        assert await process.wait() == 0
    await archive_the_rest(folder)


async def assert_as_before(folder: DataFolder) -> None:
    """Assert that everything pending was written, and that the books equal those that were printed when the folder was made."""
    expected = EXPECTED["served"] | {"records": dict(EXPECTED["served"]["records"])}
    results = await usage(folder) | await money(folder)
    for records in (results["records"], expected["records"]):
        unended = records.pop(EXPECTED["open"], None)
        assert unended is not None
        assert unended["outcome"] in (None, "gateway_crashed"), "it is closed as crashed a minute after the start"
    assert_same(results, expected)
    assert EXPECTED["asked"].keys() <= {*results["records"], EXPECTED["open"]}
    for request, record in results["records"].items():
        if record["outcome"] != "gateway_crashed":
            assert EXPECTED["asked"].get(request) == record["status"], request
    assert results["verify"]["wrong"] == results["verify with the archive"]["wrong"] == []
    pending = Counter[str]()
    for settlement in EXPECTED["journal"]:
        pending[settlement["account"]] += settlement["cost"]
        assert results["records"][settlement["rid"]]["charge_micros"] == settlement["cost"]
    assert any(pending.values())
    for account in results["accounts"]:
        name = account["id"]
        lines = [fields for _, fields in EXPECTED["ledger"][name]]
        first = sum(int(line["amount"]) for line in lines) + archived_sum(folder, name)
        assert name == "erin" or account["balance_micros"] == first - pending[name], name
        assert (account["held_micros"], account["holds"]) == (0, 0)


def archived_sum(folder: DataFolder, account: str) -> int:
    """Return the sum of the account's archived lines."""
    file = folder.archive / f"{account}.jsonl"
    return sum(json.loads(line)["amount"] for line in file.read_text().splitlines()) if file.exists() else 0


def assert_each_charged_once(store: Raw) -> None:
    """Assert that the earlier lines are unchanged, followed by the journal's charges and the end of the open hold."""
    ends: dict[str, list[int]] = {}
    for account, before in EXPECTED["ledger"].items():
        now = store.ledger(account)
        assert now[: len(before)] == before, account
        for _, fields in now[len(before) :]:
            ends.setdefault(fields["id"], []).append(-int(fields["amount"]))
    due = {settlement["rid"]: settlement["cost"] for settlement in EXPECTED["journal"] if settlement["cost"]}
    assert ends.keys() == {*due, EXPECTED["open"]}
    assert {request: sum(ends[request]) for request in due} == due
    assert len(ends[EXPECTED["open"]]) == 1


def assert_keys(store: Raw) -> None:
    """Assert that there are no unknown keys, and that all known keys without an expiry are still there."""
    results = store.patterns()
    assert results.items() <= EXPECTED["keys"].items()
    assert EXPECTED["lasting"].items() <= results.items()
    assert store.fields() == EXPECTED["fields"]


async def use_tokens(folder: DataFolder) -> None:
    """Assert that the tokens are served and charged, or refused as their stored state and that of their accounts demands."""

    async def send(token: str, model: str = "words") -> Answer:
        return await ask(folder.ports["PUBLIC"], chat(TOKENS.get(token, token), {"model": model}))

    before = {
        account["id"]: account["balance_micros"] for account in await folder.run_json("account", "list", "--json")
    }
    for token in ("laptop", "local", "bob", "ci"):
        answer = await send(token)
        assert (answer.status, answer.whole) == (200, True), answer
        assert answer.body.endswith(b"data: [DONE]\n\n")
    with folder.store() as store:  # those of the folder are of times that are far ahead, which count no more
        use_up_limits(store, int(time.time()))
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
        answer = await send(token, model)
        assert answer.status == status, (token, model, answer)
        assert answer.error["code"] == code, (token, model)
    now = {account["id"]: account["balance_micros"] for account in await folder.run_json("account", "list", "--json")}
    assert {name: before[name] - now[name] for name in now if before[name] != now[name]} == {
        "alice": 3 * CHARGE,
        "bob": CHARGE,
    }
    await assert_own_requests(folder, now["alice"])
    await assert_admin_port(folder)


async def assert_own_requests(folder: DataFolder, balance: int) -> None:
    """Assert that a caller can read the records of its account's requests, and no others."""
    port, token = folder.ports["PUBLIC"], TOKENS["laptop"]
    account = json.loads((await ask(port, get("/v1/account", token))).body)
    assert balance in account.values(), account
    for request, record in EXPECTED["served"]["records"].items():
        if request in EXPECTED["asked"] and request != EXPECTED["open"]:
            answer = await ask(port, get(f"/v1/requests/{request}", token))
            assert answer.status == (200 if record["account"] == "alice" else 404), record
            assert answer.status == 404 or json.loads(answer.body)["id"] == request


async def assert_admin_port(folder: DataFolder) -> None:
    """Assert that the admin port accepts the token that is in the folder."""
    token = (folder.data / "admin.token").read_text().strip()
    summary = get("/api/v1/usage/summary?by=account&until=2025-08-31", token)
    answer = await ask(folder.ports["ADMIN"], summary)
    assert answer.status == 200, answer
    assert {total["account"] for total in json.loads(answer.body)["data"]} >= {"alice", "bob", "carol", "dave", "erin"}


async def archive_the_rest(folder: DataFolder) -> None:
    """Archive the rest of the earlier lines, and assert that they are appended and that the books balance as before."""
    before = await money(folder)
    files = {file: file.read_bytes() for file in folder.archive.iterdir()}
    await folder.run("account", "archive", "--all", "--before", "2025-11-10", "--to", "archive")
    for file, text in files.items():
        assert file.read_bytes().startswith(text)
    after = await money(folder)
    assert after["accounts"] == before["accounts"]
    moved = sum(map(len, EXPECTED["ledger"].values()))
    assert after["verify"]["unread"] == before["verify"]["unread"] + moved
    assert after["verify with the archive"] == before["verify with the archive"]
    assert after["verify"]["wrong"] == after["verify with the archive"]["wrong"] == []


async def test_a_folder_of_another_layout_is_not_served(folder: DataFolder) -> None:
    with closing(sqlite3.connect(folder.data / "usage" / "usage-2025-08.sqlite")) as file:
        file.execute("ALTER TABLE requests DROP COLUMN bytes")
    await folder.run("serve", code=2)
