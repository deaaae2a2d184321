"""Budgets in the wallet: what is refused, what each window and session counts, and what the audit finds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest

from gateway.base.ids import Clock
from gateway.config.schema import SESSION_HEADERS, time_zone
from gateway.domain.budgets import FIELDS, NEVER, Budget, Calendar, Kind
from gateway.domain.facts import Budgets, Caller
from gateway.store.accounts import Accounts
from gateway.store.client.client import Client
from gateway.store.money.scripts import Hold, Settle, Settlement
from gateway.store.money.wallet import Wallet
from gateway.store.tokens import Tokens
from tests.store.conftest import ACCOUNT, KEY, Pepper, balance_and_held, new_request_id, open_account, overdue, take

# Budgets in the wallet: what is refused, what each window counts, and what the audit finds, with a real store.
HOUR_MS = 3_600_000
TOKEN = "1a2b3c4d"
ALL: tuple[Kind, ...] = ("day", "week", "month", "total", "requests")
MONEY: tuple[Kind, ...] = ("day", "week", "month", "total")
Prepare = Callable[[Client, Wallet, str], Awaitable[object]]


def ends_ms(*hours: float) -> str:
    """Return ends of windows, so many hours from now."""
    now_ms = int(time.time() * 1000)
    return " ".join(str(now_ms + int(each * HOUR_MS)) for each in hours)


def budget(kind: Kind, limit: int, token: str = "", ends: str = "") -> Budget:
    window = str(NEVER) if kind == "total" else ends or ends_ms(-1, 1, 25, 49)
    return Budget("token" if token else "account", kind, limit, FIELDS[kind] + token, window)


async def used(client: Client, field: str) -> int | None:
    """Return what a budget counts, or None where nothing is stored."""
    stored = await client.call("HGET", KEY + "wallet", field)
    return None if stored is None else int(stored.split()[1])


@pytest.mark.parametrize("token", ["", TOKEN], ids=["account", "token"])
class TestRefusals:
    @pytest.mark.parametrize("kind", MONEY)
    async def test_money_is_held_up_to_the_budget_and_not_a_micro_more(
        self, client: Client, wallet: Wallet, kind: Kind, token: str
    ) -> None:
        limited = budget(kind, 30, token)
        assert (await take(wallet, new_request_id(), 31, budgets=[limited])).outcome is Hold.BUDGET
        reply = await take(wallet, new_request_id(), 30, budgets=[limited])
        assert (reply.outcome, reply.marks.partition("E")[0]) == (Hold.HELD, limited.field)
        refused = await take(wallet, new_request_id(), 1, budgets=[limited])
        assert (refused.outcome, refused.marks, refused.held) == (Hold.BUDGET, reply.marks, 30)
        assert (await take(wallet, new_request_id(), 1)).outcome is Hold.HELD, "a caller without this budget"

    async def test_so_many_requests_a_day_and_not_one_more(self, wallet: Wallet, token: str) -> None:
        limited = budget("requests", 2, token)
        outcomes = [(await take(wallet, new_request_id(), 0, budgets=[limited])).outcome for _ in range(3)]
        assert outcomes == [Hold.HELD, Hold.HELD, Hold.BUDGET]

    async def test_a_change_of_a_budget_counts_from_the_next_request_on(self, wallet: Wallet, token: str) -> None:
        assert (await take(wallet, new_request_id(), 30, budgets=[budget("day", 30, token)])).outcome is Hold.HELD
        assert (await take(wallet, new_request_id(), 1, budgets=[budget("day", 20, token)])).outcome is Hold.BUDGET
        assert (await take(wallet, new_request_id(), 0, budgets=[budget("day", 20, token)])).outcome is Hold.HELD
        assert (await take(wallet, new_request_id(), 1, budgets=[budget("day", 31, token)])).outcome is Hold.HELD


async def test_every_budget_must_cover_a_request_and_one_that_refuses_it_changes_none(
    client: Client, wallet: Wallet
) -> None:
    both = [budget("day", 50), budget("total", 20, TOKEN)]
    reply = await take(wallet, new_request_id(), 30, budgets=both)
    assert (reply.outcome, reply.marks) == (Hold.BUDGET, f"T{TOKEN}E{NEVER}")
    assert (await used(client, "D"), await used(client, "T" + TOKEN)) == (None, None)
    await take(wallet, new_request_id(), 20, budgets=both)
    assert (await used(client, "D"), await used(client, "T" + TOKEN)) == (20, 20)


async def test_a_hold_that_is_repeated_counts_once_and_returns_its_marks_again(client: Client, wallet: Wallet) -> None:
    request_id, limited = new_request_id(), [budget("day", 30), budget("requests", 1)]
    first = await take(wallet, request_id, 30, budgets=limited)
    again = await take(wallet, request_id, 30, budgets=limited)
    assert (again.outcome, again.marks) == (Hold.HELD, first.marks)
    assert (await used(client, "D"), await used(client, "R")) == (30, 1)


class TestEnds:
    """What a request of 30 with a floor of 3 counts in its windows, by how it ends."""

    @pytest.fixture
    async def held(self, wallet: Wallet) -> tuple[str, str]:
        request_id = new_request_id()
        limited = [budget("day", 90), budget("requests", 5), budget("total", 90, TOKEN)]
        return request_id, (await take(wallet, request_id, 30, floor=3, budgets=limited)).marks

    async def counts(self, client: Client, wallet: Wallet) -> list[int | None]:
        assert await wallet.verify(ACCOUNT) == []
        return [await used(client, field) for field in ("D", "T" + TOKEN, "R")]

    async def test_a_settlement_leaves_its_cost(self, client: Client, wallet: Wallet, held: tuple[str, str]) -> None:
        assert (await wallet.settle(ACCOUNT, held[0], 12)).outcome is Settle.OK
        assert (await wallet.settle(ACCOUNT, held[0], 12)).outcome is Settle.DONE
        assert await self.counts(client, wallet) == [12, 12, 1]

    async def test_a_settlement_of_nothing_counts_as_a_request(
        self, client: Client, wallet: Wallet, held: tuple[str, str]
    ) -> None:
        await wallet.settle(ACCOUNT, held[0], 0, held[1])
        assert await self.counts(client, wallet) == [0, 0, 1]

    async def test_a_release_leaves_nothing(self, client: Client, wallet: Wallet, held: tuple[str, str]) -> None:
        await wallet.release(ACCOUNT, *held)
        assert await self.counts(client, wallet) == [0, 0, 0]

    @pytest.mark.parametrize("sweeps", [True, False], ids=["swept", "ended by the next hold"])
    async def test_an_expiry_leaves_its_floor_and_a_late_settlement_its_cost(
        self, client: Client, wallet: Wallet, held: tuple[str, str], sweeps: bool
    ) -> None:
        await overdue(client, held[0])
        if sweeps:
            await wallet.sweep(ACCOUNT)
        else:
            await wallet.release(ACCOUNT, (await self.another(wallet))[0])
        assert await self.counts(client, wallet) == [3, 3, 0]
        assert (await wallet.settle(ACCOUNT, *held[:1], 12)).outcome is Settle.LATE
        assert (await wallet.settle(ACCOUNT, held[0], 12, held[1])).outcome is Settle.DONE
        assert await self.counts(client, wallet) == [12, 12, 1]

    async def another(self, wallet: Wallet) -> tuple[str, str]:
        request_id = new_request_id()
        return request_id, (await take(wallet, request_id, 1)).marks

    async def test_a_late_release_leaves_nothing(self, client: Client, wallet: Wallet, held: tuple[str, str]) -> None:
        await overdue(client, held[0])
        await wallet.sweep(ACCOUNT)
        await wallet.release(ACCOUNT, *held)
        assert await self.counts(client, wallet) == [0, 0, 0]

    async def test_an_orphan_counts_once_in_the_windows_of_its_lost_hold(
        self, client: Client, wallet: Wallet, held: tuple[str, str]
    ) -> None:
        await client.call("DEL", KEY + "wallet", KEY + "leases")
        await client.call("HSET", KEY + "wallet", "numbers", "100 0 0 0")
        settlement = Settlement(ACCOUNT, held[0], 12, marks=held[1])
        assert [(await wallet.deliver(settlement)).outcome for _ in range(2)] == [Settle.ORPHAN, Settle.DONE]
        assert await self.counts(client, wallet) == [12, 12, 1]

    async def test_an_orphan_brings_no_window_back(self, client: Client, wallet: Wallet, held: tuple[str, str]) -> None:
        await client.call("DEL", KEY + "wallet", KEY + "leases")
        today = f"{ends_ms(47)} 5"  # the marks are of windows that end before
        await client.call("HSET", KEY + "wallet", "numbers", "100 0 0 0", "D", today)
        assert (await wallet.deliver(Settlement(ACCOUNT, held[0], 12, marks=held[1]))).outcome is Settle.ORPHAN
        assert await client.call("HGET", KEY + "wallet", "D") == today.encode()

    async def test_an_orphan_without_marks_counts_in_no_budget(
        self, client: Client, wallet: Wallet, held: tuple[str, str]
    ) -> None:
        await client.call("DEL", KEY + "wallet", KEY + "leases")
        await client.call("HSET", KEY + "wallet", "numbers", "100 0 0 0")
        assert (await wallet.settle(ACCOUNT, held[0], 12)).outcome is Settle.ORPHAN
        assert await self.counts(client, wallet) == [None, None, None]

    async def test_what_is_too_old_to_be_charged_counts_in_no_budget(self, client: Client, wallet: Wallet) -> None:
        marks = f"DE{ends_ms(1)}TE{NEVER}"
        assert (await wallet.settle(ACCOUNT, new_request_id(24 * 3600 + 1), 12, marks)).outcome is Settle.STALE
        assert await self.counts(client, wallet) == [None, None, None]

    async def test_marks_that_are_not_readable_change_nothing(self, client: Client, wallet: Wallet) -> None:
        before = await client.call("DUMP", KEY + "wallet")
        for marks in ("numbers", "DE1 2", "XE1", "D;E1"):
            with pytest.raises(Exception, match="wallet: "):
                await wallet.settle(ACCOUNT, new_request_id(), 12, marks)
        assert await client.call("DUMP", KEY + "wallet") == before


class TestWindows:
    async def test_a_request_counts_in_the_window_of_its_hold(self, client: Client, wallet: Wallet) -> None:
        yesterday, today = ends_ms(0.5, 24.5, 48.5, 72.5), ends_ms(-1, 23, 47, 71)
        over_midnight = new_request_id()
        marks = (await take(wallet, over_midnight, 30, budgets=[budget("day", 30, ends=yesterday)])).marks
        await client.call("HSET", KEY + "wallet", "D", f"{ends_ms(-1)} 30")  # half an hour later its window is over
        first = await take(wallet, new_request_id(), 30, budgets=[budget("day", 30, ends=today)])
        assert (first.outcome, first.marks) == (Hold.HELD, f"DE{today.split()[1]}")
        await wallet.settle(ACCOUNT, over_midnight, 29, marks)
        assert await used(client, "D") == 30
        assert await wallet.verify(ACCOUNT) == []

    async def test_a_window_counts_until_its_end_where_the_clock_steps_back(
        self, client: Client, wallet: Wallet
    ) -> None:
        after, before = ends_ms(-0.01, 24, 48, 72), ends_ms(-24, 0.01, 24.01, 48.01)
        assert (await take(wallet, new_request_id(), 30, budgets=[budget("day", 30, ends=after)])).outcome is Hold.HELD
        assert (
            await take(wallet, new_request_id(), 1, budgets=[budget("day", 30, ends=before)])
        ).outcome is Hold.BUDGET

    async def test_a_window_counts_until_its_end_where_gateways_have_other_time_zones(self, wallet: Wallet) -> None:
        zones = [ends_ms(-20, 4, 28, 52), ends_ms(-1, 23, 47, 71)]
        outcomes = [
            (await take(wallet, new_request_id(), 10, budgets=[budget("day", 30, ends=zones[number % 2])])).outcome
            for number in range(4)
        ]
        assert outcomes == [Hold.HELD] * 3 + [Hold.BUDGET]

    async def test_a_window_of_a_clock_that_was_years_ahead_is_left(self, client: Client, wallet: Wallet) -> None:
        await client.call("HSET", KEY + "wallet", "D", f"{ends_ms(9000)} 30")
        reply = await take(wallet, new_request_id(), 30, budgets=[budget("day", 30)])
        assert reply.outcome is Hold.HELD
        assert await used(client, "D") == 30

    async def test_a_month_that_was_begun_while_the_clock_was_weeks_ahead_is_left(
        self, client: Client, wallet: Wallet
    ) -> None:
        month = budget("month", 30, ends=ends_ms(-24 * 24, 6 * 24, 37 * 24, 68 * 24))
        for wrong in month.ends.split()[2:]:
            await client.call("HSET", KEY + "wallet", "M", f"{wrong} 30")
            (use,) = await wallet.budgets(ACCOUNT, [month])
            assert (use.used, str(use.ends_ms)) == (0, month.ends.split()[1])
            reply = await take(wallet, new_request_id(), 30, budgets=[month])
            assert (reply.outcome, reply.marks) == (Hold.HELD, f"ME{month.ends.split()[1]}")

    async def test_a_store_whose_clock_is_after_all_windows_holds_nothing(self, wallet: Wallet) -> None:
        late = budget("day", 30, ends=ends_ms(-4, -3, -2, -1))
        reply = await take(wallet, new_request_id(), 1, budgets=[late])
        assert (reply.outcome, reply.held) == (Hold.SKEW, 0)

    async def test_a_store_whose_clock_is_before_all_windows_counts_in_the_first(self, wallet: Wallet) -> None:
        early = budget("day", 30, ends=ends_ms(1, 25, 49, 73))
        assert (await take(wallet, new_request_id(), 1, budgets=[early])).marks == f"DE{early.ends.split()[0]}"

    async def test_memory_is_constant(self, client: Client, wallet: Wallet) -> None:
        for day in range(20):
            ends = ends_ms(day - 1, day, day + 24, day + 48)
            request_id = new_request_id()
            await take(wallet, request_id, 1, budgets=[budget(kind, 30, ends=ends) for kind in ALL])
            await wallet.settle(ACCOUNT, request_id, 1)
            await client.call("HSET", KEY + "wallet", "D", f"{ends_ms(-1)} 1", "R", f"{ends_ms(-1)} 1")
        fields = await client.call("HKEYS", KEY + "wallet")
        assert sorted(field for field in fields if field[:1].isupper()) == [b"D", b"M", b"R", b"T", b"W"]


class TestAudit:
    async def test_finds_a_sum_that_is_not_that_of_ledger_and_holds(self, client: Client, wallet: Wallet) -> None:
        settled, held, ends = new_request_id(), new_request_id(), ends_ms(-1, 1, 25, 49)
        limited = [budget("month", 90, TOKEN, ends), budget("requests", 9, ends=ends)]
        marks = (await take(wallet, settled, 30, budgets=limited)).marks
        await wallet.settle(ACCOUNT, settled, 12)
        await take(wallet, held, 30, budgets=limited)
        assert await wallet.verify(ACCOUNT) == []
        end = marks[-13:]
        await client.call("HSET", KEY + "wallet", "M" + TOKEN, f"{end} 41", "R", f"{end} 3")
        assert sorted(await wallet.verify(ACCOUNT)) == [
            f"the budget M{TOKEN} counts 0.000041, the ledger and the holds come to 0.000042",
            "the budget R counts 3, the ledger and the holds come to 2",
        ]

    @pytest.mark.parametrize("kind", ALL)
    async def test_finds_a_sum_that_is_gone(self, client: Client, wallet: Wallet, kind: Kind) -> None:
        request_id, limited = new_request_id(), [budget(kind, 90), budget(kind, 90, TOKEN)]
        marks = (await take(wallet, request_id, 30, budgets=limited)).marks
        await wallet.settle(ACCOUNT, request_id, 12, marks)
        await client.call("HDEL", KEY + "wallet", FIELDS[kind], FIELDS[kind] + TOKEN)
        used, due = ("0", "1") if kind == "requests" else ("0.00", "0.000012")
        gone = "the budget {} counts " + f"{used}, the ledger and the holds come to {due}"
        assert await wallet.verify(ACCOUNT) == [gone.format(FIELDS[kind])], "the token is gone, too"
        await client.call("HSET", KEY + "tokens", TOKEN, "{}")
        assert sorted(await wallet.verify(ACCOUNT)) == [gone.format(FIELDS[kind] + each) for each in ("", TOKEN)]

    async def test_a_sum_of_a_window_that_is_over_may_be_gone(self, client: Client, wallet: Wallet) -> None:
        await take(wallet, new_request_id(), 30, budgets=[budget("day", 90, ends=ends_ms(-1, 0.0001, 24, 48))])
        await asyncio.sleep(0.5)
        await client.call("HDEL", KEY + "wallet", "D")
        assert await wallet.verify(ACCOUNT) == []

    async def test_finds_the_budgets_among_many_requests(self, client: Client, wallet: Wallet) -> None:
        await client.call("HSET", KEY + "wallet", *(f for n in range(3000) for f in (new_request_id(), "1 settle 0")))
        await take(wallet, new_request_id(), 30, budgets=[budget("total", 90)])
        await client.call("HSET", KEY + "wallet", "T", f"{NEVER} 31")
        assert await wallet.verify(ACCOUNT) == [
            "the budget T counts 0.000031, the ledger and the holds come to 0.00003"
        ]


async def test_what_each_budget_counts_now_can_be_read(client: Client, wallet: Wallet) -> None:
    limited = [budget("day", 90), budget("requests", 5), budget("total", 90, TOKEN), budget("week", 9)]
    await take(wallet, new_request_id(), 30, budgets=limited[:3])
    await client.call("HSET", KEY + "wallet", "W", f"{ends_ms(-1)} 9")
    uses = await wallet.budgets(ACCOUNT, limited)
    assert [(use.budget, use.used) for use in uses] == list(zip(limited, [30, 1, 30, 0], strict=True))
    ends = [int(limited[index].ends.split()[1]) for index in (0, 1, 3)]
    assert [use.ends_ms for use in uses] == [*ends[:2], None, ends[2]]
    assert await wallet.budgets(ACCOUNT, []) == []


async def test_a_request_that_costs_nothing_needs_no_balance(client: Client) -> None:
    await open_account(client)
    await Wallet(client).adjust(ACCOUNT, "debt", -50, "test")
    assert (await take(Wallet(client), new_request_id(), 0, budgets=[budget("requests", 5)])).outcome is Hold.HELD
    assert await balance_and_held(client) == (-50, 0)


async def test_a_deleted_token_leaves_no_budgets(client: Client) -> None:
    await Accounts(client).create(ACCOUNT)
    wallet, tokens = Wallet(client), Tokens(client, Pepper(b"a pepper of some length"))
    await wallet.credit(ACCOUNT, "opening", 100)
    created = await tokens.create(ACCOUNT)
    token = created.id.rpartition("-")[2]
    request_id = new_request_id()
    limited = [budget(kind, 90, token) for kind in ALL] + [budget("day", 90)]
    await take(wallet, request_id, 30, budgets=limited)
    await tokens.delete(created.id)
    assert (await wallet.settle(ACCOUNT, request_id, 12)).outcome is Settle.OK
    fields = await client.call("HKEYS", KEY + "wallet")
    assert [field for field in fields if field[:1].isupper()] == [b"D"]
    assert await used(client, "D") == 12
    assert await wallet.verify(ACCOUNT) == []


class TestExtensions:
    async def test_money_for_a_further_attempt_is_refused_by_each_budget(self, client: Client, wallet: Wallet) -> None:
        request_id, limited = new_request_id(), [budget("day", 90), budget("total", 50, TOKEN), budget("requests", 1)]
        marks = (await take(wallet, request_id, 30, budgets=limited)).marks
        refused = await wallet.extend(ACCOUNT, request_id, amount=51, floor=0, budgets=limited)
        assert (refused.outcome, refused.marks, refused.held) == (Hold.BUDGET, f"T{TOKEN}E{NEVER}", 30)
        for _ in range(2):
            held = await wallet.extend(ACCOUNT, request_id, amount=50, floor=5, budgets=limited)
            assert (held.outcome, held.held) == (Hold.HELD, 50)
        assert [await used(client, field) for field in ("D", "T" + TOKEN, "R")] == [50, 50, 1]
        assert (await take(wallet, request_id, 30, budgets=limited)).marks == marks
        await wallet.settle(ACCOUNT, request_id, 41)
        assert [await used(client, field) for field in ("D", "T" + TOKEN, "R")] == [41, 41, 1]
        assert await wallet.verify(ACCOUNT) == []

    async def test_it_counts_in_the_window_of_its_hold(self, client: Client, wallet: Wallet) -> None:
        request_id, limited = new_request_id(), [budget("day", 30)]
        await take(wallet, request_id, 30, budgets=limited)
        other = f"{ends_ms(24)} 30"
        await client.call("HSET", KEY + "wallet", "D", other)
        assert (await wallet.extend(ACCOUNT, request_id, amount=70, floor=0, budgets=limited)).outcome is Hold.HELD
        assert await client.call("HGET", KEY + "wallet", "D") == other.encode()


# Budgets of sessions: each counts by itself, is forgotten an hour after its last request; an account has a thousand at most.
SESSIONS = KEY + "sessions"
OF_ACCOUNT = Budgets(session=50, session_requests=2)
OF_TOKEN = Budgets(session=40)


def budgets(session: str, account: Budgets = OF_ACCOUNT, token: Budgets = OF_TOKEN) -> tuple[Budget, ...]:
    calendar = Calendar(time_zone("UTC"), Clock(), SESSION_HEADERS)
    caller = Caller(ACCOUNT, f"{ACCOUNT}-1a2b3c4d", "", budgets=account, token_budgets=token)
    return calendar.budgets(caller, {"x-claude-code-session-id": session} if session else {})


async def use(wallet: Wallet, session: str) -> list[int]:
    return [each.used for each in await wallet.budgets(ACCOUNT, budgets(session))]


async def spend(wallet: Wallet, session: str, amount: int, cost: int) -> Hold:
    request_id = new_request_id()
    reply = await take(wallet, request_id, amount, budgets=budgets(session))
    if reply.outcome is Hold.HELD:
        await wallet.settle(ACCOUNT, request_id, cost, reply.marks)
    return reply.outcome


async def age(client: Client, hours: float) -> None:
    """Let the last request of each session be so many hours ago."""
    for session in await client.call("ZRANGE", SESSIONS, 0, -1):
        await client.call("ZADD", SESSIONS, int((time.time() - 3600 * hours) * 1000), session)


async def counted(client: Client) -> tuple[int, int]:
    """Return how many sessions are known, and how many budgets of sessions are counted."""
    fields = await client.call("HKEYS", KEY + "wallet")
    return await client.call("ZCARD", SESSIONS), sum(field[:1] in (b"S", b"Q") for field in fields)


async def test_each_session_counts_by_itself_for_account_and_token(client: Client, wallet: Wallet) -> None:
    assert await spend(wallet, "a", 30, 20) is Hold.HELD
    assert await use(wallet, "a") == [20, 1, 20]
    assert await use(wallet, "b") == [0, 0, 0]
    assert await spend(wallet, "a", 21, 0) is Hold.BUDGET, "the token's 40"
    assert await spend(wallet, "a", 20, 20) is Hold.HELD
    assert await spend(wallet, "a", 0, 0) is Hold.BUDGET, "two requests"
    assert await spend(wallet, "b", 40, 40) is Hold.HELD
    assert await spend(wallet, "", 20, 0) is Hold.HELD, "a request without a session"
    assert await counted(client) == (4, 6)
    assert await wallet.verify(ACCOUNT) == []


async def test_a_session_is_forgotten_an_hour_after_its_last_request(client: Client, wallet: Wallet) -> None:
    assert await spend(wallet, "a", 40, 40) is Hold.HELD
    await age(client, 0.9)
    assert await spend(wallet, "a", 1, 0) is Hold.BUDGET, "which is a request, too"
    assert await use(wallet, "a") == [40, 1, 40]
    await age(client, 1.1)
    assert await use(wallet, "a") == [0, 0, 0]
    assert await spend(wallet, "b", 1, 1) is Hold.HELD
    assert await counted(client) == (2, 3), "those of the other one are gone"
    assert await spend(wallet, "a", 40, 5) is Hold.HELD
    assert await use(wallet, "a") == [5, 1, 5]
    assert await wallet.verify(ACCOUNT) == []
    await age(client, 2)
    assert await wallet.verify(ACCOUNT) == []
    assert await counted(client) == (0, 0)


async def test_a_request_that_outlives_its_session_is_charged_and_counts_in_no_other(
    client: Client, wallet: Wallet
) -> None:
    long, other = new_request_id(), new_request_id()
    marks = (await take(wallet, long, 40, budgets=budgets("a"))).marks
    await age(client, 1.1)
    await asyncio.sleep(0.002)  # so that the next one begins in another millisecond
    assert await spend(wallet, "a", 40, 7) is Hold.HELD
    assert (await wallet.settle(ACCOUNT, long, 33, marks)).outcome is Settle.OK
    assert await use(wallet, "a") == [7, 1, 7]
    assert await wallet.verify(ACCOUNT) == []
    await take(wallet, other, 30, budgets=budgets("b"))
    await overdue(client, other)
    await age(client, 1.1)
    assert await wallet.verify(ACCOUNT) == []
    assert await counted(client) == (0, 0)


async def test_an_extension_counts_in_its_session(wallet: Wallet) -> None:
    request_id = new_request_id()
    await take(wallet, request_id, 30, budgets=budgets("a"))
    extended = [
        (await wallet.extend(ACCOUNT, request_id, amount=amount, floor=0, budgets=budgets("a"))).outcome
        for amount in (40, 41)
    ]
    assert extended == [Hold.HELD, Hold.BUDGET]
    assert await use(wallet, "a") == [40, 1, 40]
    assert await wallet.verify(ACCOUNT) == []


async def test_a_charge_whose_hold_was_lost_counts_in_its_session(client: Client, wallet: Wallet) -> None:
    request_id = new_request_id()
    marks = (await take(wallet, request_id, 30, budgets=budgets("a"))).marks
    await client.call("DEL", SESSIONS, KEY + "leases")
    fields = [each.field for each in budgets("a")]
    await client.call("HDEL", KEY + "wallet", request_id, *fields)
    await client.call("HSET", KEY + "wallet", "numbers", "1000 0 0 0")
    assert (await wallet.settle(ACCOUNT, request_id, 12, marks)).outcome is Settle.ORPHAN
    assert await use(wallet, "a") == [12, 1, 12]
    await age(client, 2)
    await wallet.sweep(ACCOUNT)
    assert await counted(client) == (0, 0)


async def test_an_account_has_a_thousand_sessions_at_most(client: Client, wallet: Wallet) -> None:
    only = Budgets(session=50)
    for number in range(1003):
        await take(wallet, new_request_id(), 0, budgets=budgets(f"s{number}", only, Budgets()), max_holds=2000)
    assert await counted(client) == (1000, 1000)
    assert await wallet.verify(ACCOUNT) == []
