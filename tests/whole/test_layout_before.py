"""A gateway converts the data of an earlier layout at its start, also where it is killed meanwhile; no money is lost or made.

The data folder was written by commit c07b58a, which was killed at work: see `tests/fixtures/data-c07b58a/README.md`.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest

from gateway.base.crash_points import EXIT_CODE
from gateway.store import layout
from tests.patience import PATIENCE_S
from tests.whole.old_data import CHARGE, LAYOUT_1, ON_LINUX, OldData, Raw, as_before, money
from tests.whole.raw import ask, chat

EXPECTED: Final[dict[str, Any]] = json.loads((LAYOUT_1 / "expected.json").read_text())
TOKENS: Final[dict[str, str]] = EXPECTED["tokens"]

pytestmark = ON_LINUX


@pytest.fixture
def old(tmp_path: Path) -> OldData:
    return OldData.unpacked(tmp_path, LAYOUT_1)


@pytest.mark.parametrize(
    "label", [None, "layout.begun", "layout.page:1", "layout.page:2", "layout.accounts", "layout.limits"]
)
async def test_the_books_are_the_same_after_the_conversion(old: OldData, label: str | None) -> None:
    if label is not None:
        await kill_at(old, label)
    async with old.serving() as process:
        with old.store() as store:
            assert_converted(store)
        await old.settled()
        after = await money(old)
        with old.store() as store:
            assert_charged_as_promised(store)
        process.terminate()
        assert await process.wait() == 0
    assert as_before(after["accounts"], EXPECTED["served"]["accounts"]) == EXPECTED["served"]["accounts"]
    assert after["verify"]["wrong"] == after["verify"]["stale"] == after["verify"]["expired"] == []


async def test_commands_print_the_same_balances_and_holds(old: OldData) -> None:
    assert as_before(await money(old), EXPECTED["stopped"]) == EXPECTED["stopped"]
    assert EXPECTED["stopped"]["verify"]["wrong"] == []
    assert len(EXPECTED["stopped"]["verify"]["expired"]) == len(EXPECTED["floors"])


async def test_tokens_and_limits_are_kept(old: OldData) -> None:
    async with old.upstream("GOOD"), old.serving() as process:
        await old.settled()
        for token, status, code in (
            ("laptop", 200, None),
            ("ci", 200, None),
            ("bob", 200, None),
            ("carol", 200, None),
            ("disabled", 401, "token_disabled"),
            ("dave", 403, "account_inactive"),
            ("frank", 402, "insufficient_balance"),
            ("grace", 429, "rate_limited"),
            ("heidi", 429, "rate_limited"),
        ):
            answer = await ask(old.ports["PUBLIC"], chat(TOKENS[token], {"model": "words"}))
            assert answer.status == status, (token, answer)
            assert code is None or answer.error["code"] == code
        await old.settled()
        results = await money(old)
        process.terminate()
        assert await process.wait() == 0
    before = {account["id"]: account["balance_micros"] for account in EXPECTED["served"]["accounts"]}
    now = {account["id"]: account["balance_micros"] for account in results["accounts"]}
    charges = {name: before[name] - now[name] for name in now if before[name] != now[name]}
    assert charges == {"alice": 2 * CHARGE, "bob": CHARGE, "carol": (CHARGE + 1) // 2}
    assert results["verify"]["wrong"] == []


async def kill_at(old: OldData, label: str) -> None:
    """Start the gateway, which ends when it reaches this label of the conversion."""
    old.environment["GATEWAY_CRASH_AT"] = label
    try:
        await asyncio.wait_for(old.run("serve", code=EXIT_CODE), PATIENCE_S)
    finally:
        del old.environment["GATEWAY_CRASH_AT"]


def assert_converted(store: Raw) -> None:
    """Assert that nothing is left in the earlier layout."""
    assert store.ask("GET", layout.KEY) == str(layout.LAYOUT)
    for pattern in ("holds", "ended", "ended_at", "limits:*:requests", "limits:*:tokens"):
        assert store.keys(f"gw:{{*}}:{pattern}") == []
    for account in store.accounts():
        assert store.ask("HGET", f"gw:{{{account}}}:account", "balance") == layout.UNREADABLE


def assert_charged_as_promised(store: Raw) -> None:
    """Assert that the earlier lines are unchanged, and that each open request was charged its cost if it is known, or its floor."""
    costs = {settlement["rid"]: settlement["cost"] for settlement in EXPECTED["journal"]}
    charges = Counter[str]()
    for account, before in EXPECTED["ledger"].items():
        now = store.ledger(account)
        assert now[: len(before)] == before, account
        for _, fields in now[len(before) :]:
            charges[fields["id"]] -= int(fields["amount"])
    assert charges == EXPECTED["floors"] | costs
