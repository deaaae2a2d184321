"""This version takes over the data of an earlier version with the same layout: accounts, tokens, ledgers, holds, usage, journal.

The data folder was written by commit 1c3f5e8, which was killed at work: see `tests/fixtures/data-1c3f5e8/README.md`.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest

from gateway.store import layout
from tests.whole.old_data import CHARGE, LAYOUT_2, ON_LINUX, OldData, Raw, as_before, money, usage
from tests.whole.raw import ask, chat

EXPECTED: Final[dict[str, Any]] = json.loads((LAYOUT_2 / "expected.json").read_text())
TOKENS: Final[dict[str, str]] = EXPECTED["tokens"]

pytestmark = ON_LINUX


@pytest.fixture
def old(tmp_path: Path) -> OldData:
    return OldData.unpacked(tmp_path, LAYOUT_2)


async def test_commands_print_the_same_balances_holds_and_records(old: OldData) -> None:
    expected = EXPECTED["stopped"]
    printed = await money(old) | {"records": (await usage(old))["records"]}
    assert as_before(printed, expected) == expected
    assert expected["records"]
    assert expected["verify"]["expired"], "a hold of the killed gateway is open"


async def test_a_gateway_ends_the_holds_delivers_the_journal_and_serves_the_tokens(old: OldData) -> None:
    async with old.upstream("GOOD"), old.serving() as process:
        await old.settled()
        after = await money(old)
        with old.store() as store:
            assert_taken_over(store)
        for token, status, code in (
            ("laptop", 200, None),
            ("carol", 200, None),
            ("disabled", 401, "token_disabled"),
            ("dave", 403, "account_inactive"),
            ("frank", 402, "insufficient_balance"),
        ):
            answer = await ask(old.ports["PUBLIC"], chat(TOKENS[token], {"model": "words"}))
            assert answer.status == status, (token, answer)
            assert code is None or answer.error["code"] == code
        await old.settled()
        results = await money(old) | await usage(old)
        process.terminate()
        assert await process.wait() == 0
    served = EXPECTED["served"]
    assert as_before(after["accounts"], served["accounts"]) == served["accounts"]
    assert results["records"].keys() >= served["records"].keys()
    before, now = (
        {account["id"]: account["balance_micros"] for account in accounts}
        for accounts in (served["accounts"], results["accounts"])
    )
    assert {name: before[name] - now[name] for name in now if before[name] != now[name]} == {
        "alice": CHARGE,
        "carol": (CHARGE + 1) // 2,
    }
    assert after["verify"]["wrong"] == results["verify"]["wrong"] == results["verify"]["expired"] == []


def assert_taken_over(store: Raw) -> None:
    """Assert that the layout and the earlier lines are unchanged, and that what the journal had was charged once."""
    assert store.ask("GET", layout.KEY) == str(layout.LAYOUT)
    charges = Counter[str]()
    for account, before in EXPECTED["ledger"].items():
        now = store.ledger(account)
        assert now[: len(before)] == before, account
        for _, fields in now[len(before) :]:
            charges[fields["id"]] -= int(fields["amount"])
    due = {settlement["rid"]: settlement["cost"] for settlement in EXPECTED["journal"] if settlement["cost"]}
    assert due
    assert {request: charges[request] for request in due} == due
