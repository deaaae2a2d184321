"""The scripts of layout 1 and those of this version have the same outcomes and leave the same data, on random histories.

A third account is converted in the middle of each history.
`LAYOUT_HISTORIES=100000 pytest tests/store/money/test_wallet_layouts.py` runs the longer form; `LAYOUT_SEED` is the first seed.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from redis import Redis

from gateway.store.client.client import Script
from gateway.store.embedded import EmbeddedStore
from gateway.store.layout import _ACCOUNT, _PARTS, ABOUT, UNREADABLE
from gateway.store.money.scripts import keys_of, script
from tests.store.conftest import request_id_at
from tests.store.money.wallet_machine import REAL_CLOCK, REAL_STAMP, START_MS

EARLIER: Final = Path(__file__).parent / "earlier"
EARLIER_KEYS: Final = ("account", "holds", "leases", "ended", "ended_at", "ledger", "credits", "stale")
NAMES: Final = ("hold", "settle", "credit", "sweep")
HISTORIES: Final = int(os.environ.get("LAYOUT_HISTORIES", "2000"))
FIRST: Final = int(os.environ.get("LAYOUT_SEED", "0"))
BATCH: Final = 100
KEEP_MS, SKEW_MS, LEASE_MS = 1_000_000, 100_000, 50_000
MAX_HOLDS: Final = 3

CLOCK: Final = "clock"
TEST_CLOCK: Final = f"""  return tonumber(redis.call("GET", "{CLOCK}"))
end

local function stamp()
  local last = redis.call("XREVRANGE", ledger, "+", "-", "COUNT", 1)[1]
  return string.format("%.0f", math.max(clock(), last and tonumber(last[1]:match("^%d+")) or 0)) .. "-*"
"""

Call = tuple[str, tuple[str | int, ...]]


def with_clock(text: str) -> str:
    assert REAL_CLOCK in text
    assert REAL_STAMP in text
    return text.replace(REAL_CLOCK, TEST_CLOCK).replace(REAL_STAMP, '"XADD", ledger, stamp()')


def earlier_text(name: str) -> str:
    """Return the text of a script of layout 1."""
    return "\n".join((EARLIER / f"{part}.lua").read_text() for part in ("wallet", name))


SCRIPTS: Final = {
    (layout, name): Script(name, with_clock(earlier_text(name) if layout == 1 else script(name).text))
    for layout in (1, 2)
    for name in NAMES
}


def history(chance: random.Random) -> list[Call]:
    """Return calls, and changes of the clock and of the account, which are called `clock` and `account`."""
    now, calls = START_MS, list[Call]([("credit", ("opening", "credit", 100, ""))])
    request_ids: list[str] = []

    def arrive() -> str:
        off = chance.choice((0, 0, 0, 0, SKEW_MS, -SKEW_MS, SKEW_MS + 1, -SKEW_MS - 1, -KEEP_MS, -KEEP_MS - 1))
        request_ids.append(request_id_at(now + off, chance.randrange(16)))
        return request_ids[-1]

    def some() -> str:
        return arrive() if not request_ids or chance.random() < 0.5 else chance.choice(request_ids[-3:])

    window = (KEEP_MS, SKEW_MS)
    for _ in range(chance.randint(6, 18)):
        kind = chance.choice(
            ("hold", "hold", "hold", "settle", "settle", "settle", "release", "clock", "sweep", "other")
        )
        amount = chance.choice((0, 1, 30, 60, 2**53 - 1))
        if kind == "hold":
            floor = min(amount, chance.choice((0, 5, 20)))
            lease = chance.choice((LEASE_MS, LEASE_MS, 1, 2 * LEASE_MS))
            calls.append(("hold", (some(), amount, floor, lease, chance.choice("aab"), MAX_HOLDS, *window)))
        elif kind == "settle":
            calls.append(("settle", (some(), "settle", chance.choice((0, 1, 7, 30, 60)), *window)))
        elif kind == "release":
            calls.append(("settle", (some(), "release", 0, *window)))
        elif kind == "clock":
            now += chance.choice((1, LEASE_MS - 1, LEASE_MS, SKEW_MS, KEEP_MS + 1, KEEP_MS + 2 * SKEW_MS))  # never back
            calls.append(("clock", (now,)))
        elif kind == "sweep":
            calls.append(("sweep", ("me", chance.choice((1, 100)), *window)))
        else:
            calls.append(
                chance.choice(
                    (
                        ("credit", (chance.choice("uvw"), "adjust", chance.choice((50, 51, -20)), "why")),
                        ("account", ("status", chance.choice(("active", "suspended")))),
                        ("account", ("credit_line", chance.choice((0, 40)))),
                    )
                )
            )
    return calls


class Account:
    """An account that a history changes, in one layout until it is converted."""

    def __init__(self, name: str, layout: int) -> None:
        self.name, self.layout = name, layout

    def key(self, part: str) -> str:
        return f"gw:{{{self.name}}}:{part}"

    def open(self, pipe: Any) -> None:
        fields: dict[str, str | int] = {"status": "active", "credit_line": 40, "group": "default"}
        numbers = {"balance": 0, "held": 0, "holds": 0}
        pipe.hset(self.key("account"), mapping=fields | (numbers if self.layout == 1 else {"balance": UNREADABLE}))
        if self.layout == 2:
            pipe.hset(self.key("wallet"), mapping={"numbers": "0 0 0 0", "about": ABOUT})

    def call(self, pipe: Any, name: str, arguments: tuple[str | int, ...]) -> None:
        if name == "account":
            pipe.hset(self.key("account"), *arguments)
            return
        keys = [self.key(part) for part in EARLIER_KEYS] if self.layout == 1 else list(keys_of(self.name))
        pipe.execute_command("EVALSHA", SCRIPTS[self.layout, name].digest, len(keys), *keys, *arguments)

    def convert(self, pipe: Any) -> None:
        keys = [self.key(part) for part in _PARTS]
        pipe.execute_command("EVALSHA", _ACCOUNT.digest, len(keys), *keys, UNREADABLE, ABOUT)
        self.layout = 2

    def read(self, pipe: Any) -> None:
        """Read all data, for `state`."""
        for part in ("account", "wallet", "ended", "holds", "credits", "stale"):
            pipe.hgetall(self.key(part))
        pipe.zrange(self.key("leases"), 0, -1, withscores=True)
        pipe.xrange(self.key("ledger"))
        pipe.exists(*(self.key(part) for part in ("holds", "ended", "ended_at")))

    def state(self, data: list[Any]) -> dict[str, Any]:
        """Return what was read in the same form for both layouts."""
        account, requests, ended, holds, moved, stale, leases, ledger, earlier = data
        if self.layout == 1:
            requests = ended | holds
            numbers = [account.pop(field) for field in (b"balance", b"held", b"holds")]
        else:
            assert requests.pop(b"about") == ABOUT.encode()
            requests.pop(b"trimmed", None)
            *numbers, due = requests.pop(b"numbers").split()
            assert not leases or int(due) <= leases[0][1], "a hold would expire late"
            assert account.pop(b"balance") == UNREADABLE.encode()
            assert earlier == 0
        names = ("numbers", "account", "requests", "leases", "ledger", "credits", "stale")
        return dict(zip(names, (numbers, account, requests, leases, ledger, moved, stale), strict=True))


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    store = EmbeddedStore.start(tmp_path_factory.mktemp("store"))
    with Redis.from_url(store.url) as client:
        client.config_set("appendonly", "no")
        for each in (_ACCOUNT, *SCRIPTS.values()):
            client.script_load(each.text)
        yield client
    store.stop()


def queue(pipe: Any, calls: list[Call], convert_at: int, accounts: tuple[Account, ...]) -> list[int]:
    """Add a history on all accounts to a pipeline, the last of which is converted before its call of this number.

    Return how many replies belong together, in their order: those to the same call on each account.
    """
    sizes = [1, *(1 if account.layout == 1 else 2 for account in accounts)]
    pipe.set(CLOCK, START_MS)
    for account in accounts:
        account.open(pipe)
    for number, (name, arguments) in enumerate(calls):
        if number == convert_at:
            accounts[-1].convert(pipe)
            sizes.append(1)
        if name == "clock":
            pipe.set(CLOCK, *arguments)
            sizes.append(1)
            continue
        for account in accounts:
            account.call(pipe, name, arguments)
        sizes.append(len(accounts))
    for account in accounts:
        account.read(pipe)
    return sizes


def test_both_layouts_have_the_same_outcomes_and_data(redis: Any) -> None:
    for seed in range(FIRST, FIRST + HISTORIES):
        if seed % BATCH == 0:
            redis.flushall()
        chance, pipe = random.Random(seed), redis.pipeline(transaction=False)
        calls = history(chance)
        accounts = (Account(f"old{seed}", 1), Account(f"new{seed}", 2), Account(f"mid{seed}", 1))
        sizes = queue(pipe, calls, chance.randrange(1, len(calls)), accounts)
        results = pipe.execute(raise_on_error=False)
        for size in sizes:
            first, *others = map(repr, results[:size])
            del results[:size]
            assert size < len(accounts) or all(other == first for other in others), (seed, calls, first, others)
            assert "Error" not in first or "in its range" in first or "beyond" in first, (seed, calls, first)
        read = len(results) // len(accounts)
        old, new, converted = (
            account.state(results[read * index : read * (index + 1)]) for index, account in enumerate(accounts)
        )
        assert old == new == converted, (seed, calls)
