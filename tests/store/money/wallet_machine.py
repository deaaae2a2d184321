"""The wallet compared with a model, by random histories on the real store.

The test sets the clocks: the scripts read the store's time from a key, and request ids contain a gateway's time. Any two
clocks differ by at most `SKEW_MS`, as the wallet requires. A failover may change the store's clock within that and lose
what was acknowledged since the last copy; the gateways' replay follows it. The archive's files are not affected, and no
replica lacks lines that are archived.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Coroutine
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gateway.base.errors import StoreError
from gateway.domain.budgets import NEVER, Budget
from gateway.store.client.client import Client, Script
from gateway.store.money.archive import Archive, Archived, ArchiveError, Archiver, Entry
from gateway.store.money.audit import RESOLVING_KINDS
from gateway.store.money.scripts import KEYS, Settlement
from gateway.store.money.wallet import Credit, Hold, Settle, Wallet
from tests.patience import PATIENCE_S
from tests.store.conftest import ACCOUNT, KEY, request_id_at

Reply = TypeVar("Reply")

KEEP_MS, SKEW_MS, LEASE_MS = 1_000_000, 100_000, 50_000
START_MS = 1_800_000_000_000
MAX_HOLDS = 3
CREDIT_LINE = 40
OPENING = 100

AMOUNTS = st.sampled_from((1, 30, 60, 0))
TOTALS = st.sampled_from((31, 62, 100, 1))
"""Amounts of extensions."""
FLOORS = st.sampled_from((0, 5, 20))
RECENT = st.integers(0, 4)
"""The request of a call, counted back from the newest, so that calls meet more often than by choosing from all."""

TRANSACTIONS = ("u", "v", "numbers", "trimmed", "archived", "about")
"""Ids of transactions, also those that are the names of fields."""

TOKEN = "1a2b3c4d"
SESSIONS = ("00c0ffee", "7ea")
BUDGETS = st.sampled_from(
    (
        {},
        {"D": 90},
        {"D": 62, "R": 2},
        {"T": 150, "R" + TOKEN: 2},
        {"D": 120, "D" + TOKEN: 60, "T" + TOKEN: 90},
        {"R": 1, "D" + TOKEN: 1},
        {"S" + SESSIONS[0]: 62, "Q" + SESSIONS[0]: 2},
        {"D": 120, "Q" + SESSIONS[1]: 1, "S" + SESSIONS[0]: 90},
    )
)
"""The limits of budgets by their field: of a day, in total, of requests, of the account, of a token, or of a session."""
OF_REQUESTS, OF_SESSION = ("R", "Q"), ("S", "Q")
FORGOTTEN_MS, SESSION_MS = 3_600_000, 30 * 86_400_000
DAY_MS = 250_000
"""More than two differences between clocks, as a day is."""

GOOD_TERMS: dict[str, Any] = {"amount": 1, "floor": 0, "lease_ms": 1, "fingerprint": "a", "max_holds": 1}
BAD_TERMS: tuple[dict[str, Any], ...] = (
    *({"amount": -1}, {"amount": 2**53}, {"lease_ms": 0}, {"fingerprint": "-"}, {"max_holds": 0}),
    {"budgets": [Budget("account", "day", 1, "numbers", str(NEVER))]},
    {"budgets": [Budget("account", "day", -1, "D", str(NEVER))]},
    {"budgets": [Budget("account", "day", 1, "D", "soon")]},
    *({name: wrong} for name in ("more", "cost") for wrong in (-1, 2**53)),
)

WINDOW_MS = KEEP_MS + 2 * SKEW_MS
"""The least age of a line to be archived, and of an end to be deleted."""

TRIMMING, MAX_TRIMMED = "08", 32
"""The last digits of requests whose settlement deletes old ends, and how many at most."""

MARK = re.compile("([A-Z][a-z0-9]*)E([0-9]+)")

CLOCK = f"{{{ACCOUNT}}}:clock"
REAL_CLOCK = """  local time = redis.call("TIME")
  return time[1] * 1000 + math.floor(time[2] / 1000)
"""
TEST_CLOCK = f"""  return tonumber(redis.call("GET", "{CLOCK}"))
end

local function stamp() -- as a server makes ids: by its clock, never decreasing
  local last = redis.call("XREVRANGE", ledger, "+", "-", "COUNT", 1)[1]
  return digits(math.max(clock(), last and tonumber(last[1]:match("^%d+")) or 0)) .. "-*"
"""
REAL_STAMP, TEST_STAMP = '"XADD", ledger, "*"', '"XADD", ledger, stamp()'


@dataclass
class Held:
    amount: int
    floor: int
    fingerprint: str
    expiry: int


Window = tuple[str, int]
"""The field of a budget, and the end of a window."""


@dataclass
class Model:
    """The model of the account. It never forgets anything, except by a failover."""

    balance: int = 0
    active: bool = True
    holds: dict[str, Held] = field(default_factory=dict)
    expired: dict[str, int] = field(default_factory=dict)
    resolved: dict[str, int] = field(default_factory=dict)
    stale: dict[str, int] = field(default_factory=dict)
    credits: dict[str, int] = field(default_factory=dict)
    marks: dict[str, list[Window]] = field(default_factory=dict)
    """The windows in which each request counts, however it ends."""
    answered: set[str] = field(default_factory=set)
    windows: dict[str, int] = field(default_factory=dict)
    """The end of the window that each budget counts now."""
    sessions: dict[str, int] = field(default_factory=dict)
    """When each session that is not forgotten had its last request."""

    def note(self, sessions: set[str], now: int) -> None:
        """Note a request of sessions, upon which others are forgotten."""
        self.sessions |= dict.fromkeys(sessions, now)
        if sessions:
            self.forget(now)

    def forget(self, now: int) -> None:
        for session in [session for session, last in self.sessions.items() if last + FORGOTTEN_MS <= now]:
            del self.sessions[session]
            for letter in OF_SESSION:
                self.windows.pop(letter + session, None)

    def used(self, window: Window) -> int:
        """Return what was charged in a window and is held in it, added up."""
        used = 0
        for request_id in [key for key, marks in self.marks.items() if window in marks]:
            if window[0].startswith(OF_REQUESTS):
                used += request_id in self.holds or request_id in self.answered
            elif request_id in self.holds:
                used += self.holds[request_id].amount
            else:
                used += self.expired.get(request_id, 0) + self.resolved.get(request_id, 0)
        return used

    @property
    def held(self) -> int:
        return sum(hold.amount for hold in self.holds.values())

    def expire(self, now: int) -> list[tuple[str, int]]:
        over = sorted((hold.expiry, request_id) for request_id, hold in self.holds.items() if hold.expiry <= now)
        for _, request_id in over:
            self.expired[request_id] = self.holds.pop(request_id).floor
            self.balance -= self.expired[request_id]
        return [(request_id, self.expired[request_id]) for _, request_id in over]


class WalletMachine(RuleBasedStateMachine):
    """One account, few requests, many calls. `mutation` replaces text in the scripts."""

    url: str
    mutation: tuple[str, str] = ("", "")

    @initialize()
    def open(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.true_ms = START_MS
        self.error_ms = 0
        self.truth = Model(balance=OPENING, credits={"opening": OPENING})
        self.copy: tuple[Model, dict[str, bytes | None]] | None = None
        self.copied_ms = 0
        self.since_copy: list[Settlement] = []
        self.born: dict[str, int] = {}
        self.limits: dict[str, int] = {}
        self.zone_ms = 0
        self.marks: dict[str, str] = {}
        self.folder = TemporaryDirectory()
        self.archive = Archive(Path(self.folder.name))
        self.run(self._open())
        self._arrive(self.true_ms)

    async def _open(self) -> None:
        self.client = Client.connect(self.url, timeout_s=PATIENCE_S)
        await self.client.call("FLUSHALL")
        await self.client.call("SET", CLOCK, self.now)
        await self.client.call("HSET", KEY + "account", "status", "active", "credit_line", CREDIT_LINE)
        await self.client.call("HSET", KEY + "wallet", "numbers", "0 0 0 0")
        window: dict[str, Any] = {"keep_s": KEEP_MS / 1000, "skew_s": SKEW_MS / 1000}
        self.wallet, self.archiver = Wallet(self.client, **window), Archiver(self.client, self.archive, **window)
        self.wallet.scripts = {name: self._changed(script) for name, script in self.wallet.scripts.items()}
        self.archiver.script = self._changed(self.archiver.script)
        await self.wallet.credit(ACCOUNT, "opening", OPENING)

    def _changed(self, script: Script) -> Script:
        text = script.text.replace(REAL_CLOCK, TEST_CLOCK).replace(REAL_STAMP, TEST_STAMP)
        return Script(script.name, text.replace(*self.mutation))

    def run(self, call: Coroutine[Any, Any, Reply]) -> Reply:
        return self.loop.run_until_complete(call)

    @property
    def now(self) -> int:
        """The store's time."""
        return self.true_ms + self.error_ms

    # Events around the wallet

    def _arrive(self, born: int) -> str:
        request_id = request_id_at(born, 4 * len(self.born))  # every other one's settlement deletes old ends
        self.born[request_id] = born
        return request_id

    def _recent(self, back: int) -> str:
        request_ids = list(self.born)
        return request_ids[-1 - back % len(request_ids)]

    @rule(off_ms=st.sampled_from((-KEEP_MS - 1, -KEEP_MS, -SKEW_MS - 1, SKEW_MS, SKEW_MS + 1)))
    def a_request_with_a_strange_time_arrives(self, off_ms: int) -> None:
        self._arrive(self.now + off_ms)

    @rule(
        error_ms=st.sampled_from((0, SKEW_MS)),
        amounts=st.lists(AMOUNTS, min_size=1, max_size=MAX_HOLDS + 1),
        floor=FLOORS,
        again=st.sampled_from(("", "a", "b")),
        lease_ms=st.sampled_from((LEASE_MS, LEASE_MS, 2 * LEASE_MS)),
    )
    def requests_arrive_and_are_held(
        self, error_ms: int, amounts: list[int], floor: int, again: str, lease_ms: int
    ) -> None:
        for amount in amounts:
            request_id = self._arrive(self.true_ms + error_ms)
            self._hold(request_id, amount, floor, "a", lease_ms)
            if again:
                self._hold(request_id, amount, floor, again, lease_ms)

    @rule(
        passed_ms=st.sampled_from(
            (LEASE_MS, 1, LEASE_MS - 1, SKEW_MS, KEEP_MS + 1, KEEP_MS + 3 * SKEW_MS, FORGOTTEN_MS)
        ),
        error_ms=st.sampled_from((None, None, None, 0, SKEW_MS)),
    )
    def time_passes_and_clocks_jump(self, passed_ms: int, error_ms: int | None) -> None:
        self.error_ms = self.error_ms if error_ms is None else error_ms
        self._pass(passed_ms)

    def _pass(self, passed_ms: int) -> None:
        self.true_ms += passed_ms
        self.run(self.client.call("SET", CLOCK, self.now))

    @rule(amount=AMOUNTS, floor=FLOORS, late_ms=st.sampled_from((None, None, KEEP_MS + 3 * SKEW_MS)))
    def a_gateway_dies(self, amount: int, floor: int, late_ms: int | None) -> None:
        self._hold(self._arrive(self.true_ms), amount, floor, "a")
        self._pass(LEASE_MS)
        self.sweep()
        if late_ms is not None:  # its journal is found when the end of the request may be deleted
            self._pass(late_ms)
            self.settle(0, amount, 1)

    @rule(active=st.sampled_from((True, True, False)))
    def an_operator_changes_the_status(self, active: bool) -> None:
        self.truth.active = active
        self.run(self.client.call("HSET", KEY + "account", "status", "active" if active else "suspended"))

    @rule(limits=BUDGETS, zone_ms=st.sampled_from((0, 0, 0, 70_000)))
    def an_operator_changes_budgets_and_the_time_zone(self, limits: dict[str, int], zone_ms: int) -> None:
        self.limits, self.zone_ms = limits, zone_ms

    @rule(amount=st.sampled_from((0, 1)))
    def an_operator_lowers_budgets(self, amount: int) -> None:
        self.limits = dict.fromkeys(self.limits, 1)
        self._hold(self._arrive(self.true_ms), amount, 0, "a")

    # Calls. The same request is repeated, as after a lost reply

    @rule(back=RECENT, amount=AMOUNTS, floor=FLOORS, fingerprint=st.sampled_from(("a", "a", "b")))
    def hold(self, back: int, amount: int, floor: int, fingerprint: str) -> None:
        self._hold(self._recent(back), amount, floor, fingerprint)

    def _hold(self, request_id: str, amount: int, floor: int, fingerprint: str, lease_ms: int = LEASE_MS) -> None:
        new = Held(amount, min(floor, amount), fingerprint, self.now + lease_ms)
        budgets = self._budgets()
        expected, marks = self._expected_of_hold(request_id, new, budgets)
        terms: dict[str, Any] = {"lease_ms": lease_ms, "fingerprint": fingerprint, "max_holds": MAX_HOLDS}
        reply = self.run(self.wallet.hold(ACCOUNT, request_id, amount=amount, floor=floor, budgets=budgets, **terms))
        assert reply.outcome in expected, (reply, expected)
        assert reply.marks == _text(marks)
        if reply.outcome is Hold.HELD:
            self.marks[request_id] = reply.marks
        assert (reply.balance, reply.held) == (self.truth.balance, self.truth.held)

    def _budgets(self) -> list[Budget]:
        """Return the present budgets, with the windows by a gateway's clock."""
        day_ms = (self.true_ms - self.zone_ms) // DAY_MS * DAY_MS + self.zone_ms
        days = " ".join(str(day_ms + number * DAY_MS) for number in range(4))
        return [
            Budget("account", "day", limit, field, str(NEVER) if field.startswith("T") else days)
            for field, limit in self.limits.items()
        ]

    def _expected_of_hold(self, request_id: str, new: Held, budgets: list[Budget]) -> tuple[set[Hold], list[Window]]:
        """Return the possible outcomes, and the windows in which the request counts, or the one that refuses it."""
        truth, strange = self.truth, abs(self.born[request_id] - self.now) > SKEW_MS
        truth.expire(self.now)
        if request_id in truth.holds:
            same = truth.holds[request_id].fingerprint == new.fingerprint
            return {Hold.HELD if same else Hold.CONFLICT}, truth.marks[request_id]
        if request_id in truth.expired or request_id in truth.resolved:
            return {Hold.DONE, Hold.SKEW} if strange else {Hold.DONE}, []
        if strange:
            return {Hold.SKEW}, []
        if not truth.active:
            return {Hold.INACTIVE}, []
        if len(truth.holds) >= MAX_HOLDS:
            return {Hold.BUSY}, []
        if truth.balance - truth.held + CREDIT_LINE < new.amount and (new.amount or not budgets):
            return {Hold.FUNDS}, []
        marks = [self._window_of(budget) for budget in budgets]
        noted = set[str]()
        for budget, window in zip(budgets, marks, strict=True):
            noted |= {budget.field[1:]} if budget.field.startswith(OF_SESSION) else set()
            added = 1 if budget.field.startswith(OF_REQUESTS) else new.amount
            if added and truth.used(window) + added > budget.limit:
                truth.note(noted, self.now)
                return {Hold.BUDGET}, [window]
        truth.note(noted, self.now)
        truth.holds[request_id] = new
        truth.marks[request_id] = marks
        truth.windows.update(marks)
        return {Hold.HELD}, marks

    def _window_of(self, budget: Budget) -> Window:
        """Return the window that a budget counts now: the one that it has counted before, unless that is over."""
        before = self.truth.windows.get(budget.field, 0)
        if budget.field.startswith(OF_SESSION):
            known = self.truth.sessions.get(budget.field[1:], -FORGOTTEN_MS) + FORGOTTEN_MS > self.now
            return budget.field, before if known and before > self.now else self.now + SESSION_MS
        return budget.field, before if before > self.now else min(
            end for end in map(int, budget.ends.split()) if end > self.now
        )

    @rule(back=RECENT, amounts=st.lists(TOTALS, min_size=1, max_size=3), floor=FLOORS)
    def extend(self, back: int, amounts: list[int], floor: int) -> None:
        """Extend a hold, also by a call that arrives again after a later one."""
        request_id = self._recent(back)
        for amount in amounts:
            self._extend(request_id, amount, floor)

    @rule(
        amount=AMOUNTS, floor=FLOORS, raised=FLOORS, totals=st.lists(TOTALS, min_size=1, max_size=2), dies=st.booleans()
    )
    def attempts_fail_and_others_follow(
        self, amount: int, floor: int, raised: int, totals: list[int], dies: bool
    ) -> None:
        request_id = self._arrive(self.true_ms)
        self._hold(request_id, amount, floor, "a")
        for total in totals:
            self._extend(request_id, total, raised)
        self._hold(request_id, amount, floor, "a")
        if dies:
            self._pass(LEASE_MS)
            self._extend(request_id, totals[-1] + 1, raised)
            self.sweep()

    def _extend(self, request_id: str, amount: int, floor: int) -> None:
        budgets = self._budgets()
        expected, marks = self._expected_of_extension(request_id, amount, min(floor, amount), budgets)
        reply = self.run(self.wallet.extend(ACCOUNT, request_id, amount=amount, floor=floor, budgets=budgets))
        assert reply.outcome in expected, (reply, expected)
        assert reply.marks == _text(marks)
        assert (reply.balance, reply.held) == (self.truth.balance, self.truth.held)

    def _expected_of_extension(
        self, request_id: str, amount: int, floor: int, budgets: list[Budget]
    ) -> tuple[set[Hold], list[Window]]:
        """Return the possible outcomes, and the window that refuses it."""
        truth, hold = self.truth, self.truth.holds.get(request_id)
        if hold is None:
            if request_id not in truth.expired and request_id not in truth.resolved:
                return {Hold.LOST}, []
            return {Hold.DONE, Hold.LOST} if self.born[request_id] < self.now - KEEP_MS else {Hold.DONE}, []
        if hold.expiry <= self.now:
            return {Hold.DONE}, []
        if amount <= hold.amount:
            return {Hold.HELD}, []
        if not truth.active:
            return {Hold.INACTIVE}, []
        if truth.balance - truth.held + CREDIT_LINE < amount - hold.amount:
            return {Hold.FUNDS}, []
        limits = {budget.field: budget.limit for budget in budgets if not budget.field.startswith(OF_REQUESTS)}
        for window in truth.marks[request_id]:  # one that is over counts no more
            limit = limits.get(window[0]) if window in truth.windows.items() else None
            if limit is not None and truth.used(window) + amount - hold.amount > limit:
                return {Hold.BUDGET}, [window]
        hold.amount, hold.floor = amount, max(floor, hold.floor)
        return {Hold.HELD}, []

    @rule(back=RECENT, cost=AMOUNTS, calls=st.sampled_from((2, 1)), knows=st.sampled_from((True, True, False)))
    def settle(self, back: int, cost: int, calls: int, knows: bool = True) -> None:
        """Settle a request, also by a gateway that does not know its marks: the reply to the hold was lost."""
        request_id = self._recent(back)
        marks = self.marks.get(request_id, "") if knows else ""
        for _ in range(calls):
            settlement = Settlement(ACCOUNT, request_id, cost, marks=marks)
            self._resolve(settlement, self.wallet.settle(ACCOUNT, request_id, cost, marks))

    @rule(back=RECENT)
    def release(self, back: int) -> None:
        request_id = self._recent(back)
        marks = self.marks.get(request_id, "")
        settlement = Settlement(ACCOUNT, request_id, kind="release", marks=marks)
        self._resolve(settlement, self.wallet.release(ACCOUNT, request_id, marks))

    def _resolve(self, settlement: Settlement, call: Coroutine[Any, Any, Any]) -> None:
        old = self._old_ends()
        settled = self.run(call)
        if settlement.request_id[-1] in TRIMMING:
            assert self._old_ends() == max(0, old - MAX_TRIMMED)
        expected = self._expected_of_settlement(settlement, settled.outcome)
        assert (settled.outcome, settled.charged) == expected
        self.since_copy.append(settlement)

    def _expected_of_settlement(self, settlement: Settlement, outcome: Settle) -> tuple[Settle, int]:
        """If the request is so old that its end may have been trimmed, `STALE` is as correct as the full result."""
        truth, request_id, cost = self.truth, settlement.request_id, settlement.cost
        before = request_id in truth.resolved
        expected = self._expected_charge(request_id, cost, outcome)
        if request_id in truth.resolved and not before:
            if expected[0] is Settle.ORPHAN:
                self._count_orphan(settlement)
            if settlement.kind == "settle":
                truth.answered.add(request_id)
        return expected

    def _count_orphan(self, settlement: Settlement) -> None:
        """Count an orphan by the marks of its gateway, in later windows than those that the store has as well."""
        marks = [(field, int(ends_ms)) for field, ends_ms in MARK.findall(settlement.marks)]
        self.truth.marks[settlement.request_id] = marks
        for name, ends_ms in marks:
            self.truth.windows[name] = max(ends_ms, self.truth.windows.get(name, 0))
            if name.startswith(OF_SESSION):
                self.truth.sessions.setdefault(name[1:], self.now)

    def _expected_charge(self, request_id: str, cost: int, outcome: Settle) -> tuple[Settle, int]:
        truth, born = self.truth, self.born[request_id]
        old = born < self.now - KEEP_MS
        if request_id in truth.holds:
            del truth.holds[request_id]
            truth.resolved[request_id] = cost
            truth.balance -= cost
            return Settle.OK, cost
        if request_id in truth.resolved or request_id in truth.expired:
            if old and outcome is Settle.STALE:
                truth.stale.setdefault(request_id, cost)
                return Settle.STALE, 0
            if request_id in truth.resolved:
                return Settle.DONE, truth.resolved[request_id]
            truth.balance += truth.expired.pop(request_id) - cost
            truth.resolved[request_id] = cost
            return Settle.LATE, cost
        if old or born > self.now + SKEW_MS:
            truth.stale.setdefault(request_id, cost)
            return Settle.STALE, 0
        truth.resolved[request_id] = cost
        truth.balance -= cost
        return Settle.ORPHAN, cost

    @rule(transaction=st.sampled_from(TRANSACTIONS), amount=st.sampled_from((50, 51, -20)))
    def credit_or_adjust(self, transaction: str, amount: int) -> None:
        known = self.truth.credits.get(transaction)
        expected = Credit.OK if known is None else Credit.DONE if known == amount else Credit.CONFLICT
        if known is None:
            self.truth.credits[transaction] = amount
            self.truth.balance += amount
        reply = self.run(self.wallet.adjust(ACCOUNT, transaction, amount, "model"))
        assert (reply.outcome, reply.balance) == (expected, self.truth.balance)

    @rule()
    def sweep(self) -> None:
        old = self._old_ends()
        assert self.run(self.wallet.sweep(ACCOUNT)) == self.truth.expire(self.now)
        self.truth.forget(self.now)
        assert self._old_ends() == max(0, old - MAX_TRIMMED)

    def _old_ends(self) -> int:
        """Return the number of lines that are old enough for the ends in them to be deleted, after those where they are."""
        trimmed = self.run(self.client.call("HGET", KEY + "wallet", "trimmed")) or b"0-0"
        return len(self._ledger(f"({trimmed.decode()}", self.now - WINDOW_MS - 1))

    @rule(back=RECENT, bad=st.sampled_from(BAD_TERMS))
    def a_bad_argument_is_refused(self, back: int, bad: dict[str, Any]) -> None:
        request_id = self._recent(back)
        if "cost" in bad:
            self._refused(self.wallet.settle(ACCOUNT, request_id, bad["cost"]))
        elif "more" in bad:
            self._refused(self.wallet.extend(ACCOUNT, request_id, amount=bad["more"], floor=0))
        else:
            self._refused(self.wallet.hold(ACCOUNT, request_id, **(GOOD_TERMS | bad)))

    def _refused(self, call: Coroutine[Any, Any, Any]) -> None:
        try:
            self.run(call)
        except StoreError:
            return
        raise AssertionError("a bad argument was accepted")

    # An archiver, which may be killed before it trims, or whose call may arrive again later

    @precondition(lambda self: self.now > START_MS + WINDOW_MS)
    @rule(killed=st.sampled_from((False, False, True)))
    def an_archiver_runs(self, killed: bool) -> None:
        before_ms, known = self.now - WINDOW_MS, self._archived()
        page, young = self._ledger("-", before_ms - 1), self._ledger(before_ms, "+")
        if page and self.copied_ms < before_ms:
            self.copy = None
        if killed and page:
            with self.archive.locked(ACCOUNT) as file:
                file.verify(known)
                file.append(page)
            return
        assert self.run(self.archiver.move(ACCOUNT, before_ms)) == len(page)
        if page:
            self._not_trimmed(ArchiveError, known, page[0])
        if young:
            self._not_trimmed(StoreError, self._archived(), young[0])

    def _not_trimmed(self, expected: type[Exception], known: Archived, first: Entry) -> None:
        try:
            self.run(self.archiver.trim(ACCOUNT, known, 1, first[0]))
        except expected:
            return
        raise AssertionError("a line that must stay was trimmed")

    def _ledger(self, first: str | int, last: str | int) -> list[Entry]:
        lines: list[Entry] = self.run(self.client.call("XRANGE", KEY + "ledger", first, last))
        return lines

    def _archived(self) -> Archived:
        return Archived.of(self.run(self.client.call("HGET", KEY + "wallet", "archived")))

    # A failover: a replica takes over with the data up to some moment

    @rule()
    def a_replica_copies(self) -> None:
        copies = [self.run(self.client.call("DUMP", KEY + name)) for name in KEYS]
        self.copy = (deepcopy(self.truth), dict(zip(KEYS, copies, strict=True)))
        self.copied_ms = self.now
        self.since_copy = []

    @precondition(lambda self: self.copy is not None)
    @rule()
    def the_replica_takes_over(self) -> None:
        assert self.copy is not None
        truth, copies = self.copy
        self.truth, self.copy = truth, None
        self.run(self.client.call("DEL", *(KEY + name for name in KEYS)))
        for name, copy in copies.items():
            if copy is not None:
                self.run(self.client.call("RESTORE", KEY + name, 0, copy))
        for settlement in self.since_copy:
            settled = self.run(self.wallet.deliver(settlement))
            expected = self._expected_of_settlement(settlement, settled.outcome)
            assert (settled.outcome, settled.charged) == expected

    # Invariants

    @invariant()
    def the_account_is_as_the_truth_says(self) -> None:
        self.run(self._compare())

    async def _compare(self) -> None:
        wallet, ledger, stream, leases = await asyncio.gather(
            self.client.call("HGETALL", KEY + "wallet"),
            self.client.call("XRANGE", KEY + "ledger", "-", "+"),
            self.client.call("XINFO", "STREAM", KEY + "ledger"),
            self.client.call("ZRANGE", KEY + "leases", 0, -1, "WITHSCORES"),
        )
        numbers, archived = wallet.pop(b"numbers").split(), wallet.pop(b"archived", None)
        amounts = [fields[b"amount"] for _, fields in ledger]
        for number in (*numbers, *amounts):
            assert number == str(int(number)).encode()
        balance, held, holds, due = map(int, numbers)
        assert [balance, held, holds] == [self.truth.balance, self.truth.held, len(self.truth.holds)]
        expiries = dict(leases)
        assert expiries == {request_id.encode(): hold.expiry for request_id, hold in self.truth.holds.items()}
        assert all(due <= expiry for expiry in expiries.values()), "a hold would expire late"
        budgets = {key.decode(): wallet.pop(key) for key in list(wallet) if key[:1].isupper()}
        windows = self.truth.windows.items()
        assert budgets == {
            field: f"{ends_ms} {self.truth.used((field, ends_ms))}".encode() for field, ends_ms in windows
        }
        trimmed = _place(wallet.pop(b"trimmed", b"0-0"))
        ends = {
            fields[b"id"] for line, fields in ledger if _place(line) > trimmed and fields[b"kind"] in RESOLVING_KINDS
        }
        assert wallet.keys() == ends | expiries.keys(), (
            "the ends of the lines after the trimmed ones, and the holds, are kept"
        )
        known = Archived.of(archived)
        assert known.lines + len(ledger) == stream[b"entries-added"], "every line is archived or in the ledger"
        assert known.total + sum(map(int, amounts)) == balance

    def teardown(self) -> None:
        try:
            self.truth.expire(self.now)  # the audit sweeps
            self.truth.forget(self.now)
            assert self.run(self.wallet.verify(ACCOUNT)) == []
            assert self.run(self.wallet.audit(ACCOUNT, self.archive)).wrong == []
            assert self.run(self.wallet.dead_letters(ACCOUNT)) == self.truth.stale
            self.the_account_is_as_the_truth_says()
        finally:
            self.run(self.client.close())
            self.loop.close()
            self.folder.cleanup()


def _text(marks: list[Window]) -> str:
    return "".join(f"{field}E{ends_ms}" for field, ends_ms in marks)


def _place(line: bytes) -> tuple[int, int]:
    """Return a line's id, which can be compared."""
    ms, _, number = line.partition(b"-")
    return int(ms), int(number)
