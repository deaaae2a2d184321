"""Places a hold on the account's balance before the upstream is called, and charges the actual usage afterwards.

The hold covers the most that one attempt can cost, unless `max_hold` lowers it, so concurrent requests cannot overdraw a balance.
Before a further attempt it grows by what the failed ones may be billed; where the balance does not cover that, no further attempt
is made. The charge never exceeds the most that the request can cost, even if an upstream reports more usage than that.

The errors of a hold that the wallet refuses have the figures of a 402, in words and for programs: what a request needs and what
there is. A budget has one error where it is used up, and a line in an explanation.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from typing import Any, Final, Literal

import msgspec

from gateway import (
    MICROS,
    AccountStatus,
    Alerts,
    Body,
    Budget,
    BudgetUse,
    Calendar,
    Caller,
    Exchange,
    Hold,
    HoldReply,
    Plan,
    PlanPart,
    Plugin,
    Price,
    Refused,
    Services,
    Settled,
    Settlement,
    StalePlan,
    StoreAway,
    Usage,
    amount,
    budget_in,
    took_nothing,
)

HELD: Final = Hold.HELD  # a name of a module, as each request asks for it

LEAST_HOLD: Final = Decimal("0.000001")
LARGEST_HOLD: Final = 1_000_000_000
"""In currency units."""
LARGEST_AMOUNT: Final = 2**53 - 1
"""The largest amount that the wallet can hold, in micros. No balance is larger."""
LONGEST_LEASE_S: Final = 86_400
"""The wallet forgets a request after a day, so no hold may last longer."""

Fitting = Callable[[int], int]
"""Returns the largest `max_tokens` for which so many micros suffice; 0 for none."""

NO_HEADERS: Final[Mapping[str, str]] = {}

NAMES: Final = {
    "day": "budget of the day",
    "week": "budget of the week",
    "month": "budget of the month",
    "total": "total budget",
    "requests": "budget of requests a day",
    "session": "budget of a session",
    "session_requests": "budget of requests in a session",
}


class Quota(Plugin):
    """Refuses requests that the balance cannot cover, and charges each request once."""

    API = 1
    requires = (Caller,)
    counts = True

    max_hold: Decimal | None = None
    """The largest hold of one request, in currency units. Requests may then cost more than their hold."""
    max_holds: int = 10_000
    """How many requests of one account may have a hold at once. The bound of balances that is printed at start grows with it."""
    on_crash: Literal["release", "charge_floor"] = "release"
    """What happens to a hold if the gateway crashes: it is released, or the estimated price of the input is charged."""
    lease_margin: float = 60
    """Seconds for which a hold outlasts the longest possible request if the gateway crashes."""

    def __post_init__(self) -> None:
        if not 1 <= self.max_holds <= 1_000_000:
            raise ValueError("max_holds must be from 1 to 1000000")
        # A comparison with NaN raises an error.
        if self.max_hold is not None and not (
            self.max_hold.is_finite() and LEAST_HOLD <= self.max_hold <= LARGEST_HOLD
        ):
            raise ValueError(f"max_hold must be from {LEAST_HOLD} to {LARGEST_HOLD}, or null")
        if not 1 <= self.lease_margin <= 86_400:
            raise ValueError("lease_margin must be from 1 to 86400 seconds")

    async def start(self, services: Services) -> None:
        """Take what the hooks need from the services, and compute the lease of a hold."""
        self.wallet = services.store.wallet
        self.alerts = services.store.alerts
        self.accounts = services.store.accounts
        self.catalogue = services.catalogue
        self.calendar = Calendar(services.catalogue.time_zone, services.clock, services.catalogue.session_headers)
        self.of_any_session = dict.fromkeys(services.catalogue.session_headers, "any")
        self.log = services.log
        lease_s = self.catalogue.longest_s + self.lease_margin
        if lease_s > LONGEST_LEASE_S:
            raise ValueError(
                f"by the timers of the channels a request may take {self.catalogue.longest_s:g} s, and with lease_margin its "
                f"hold would last {lease_s:g} s, of {LONGEST_LEASE_S} at most: lower the timers or lease_margin"
            )
        self.lease_ms = int(lease_s * 1000)

    def prepare(self, plan: Plan) -> PlanPart | None:
        """Return the part that holds and settles at the price of the model, one that does nothing for what is free.

        Where sessions have budgets, it is for one request alone: its headers name the session.
        """
        wire = plan.operation.wire
        if wire is None or wire.free:
            return PlanPart()
        caller = plan[Caller]
        price = self.catalogue.price(plan.model, caller.group)
        if price is None or not self.catalogue.allows(caller, plan.model):
            return None  # `model-routing` refuses the request
        of_session = any(each.of_session for each in self.calendar.budgets(caller, self.of_any_session))
        if of_session and plan.request is None:
            return None
        part = QuotaPart(self, caller, plan.model, price, plan.request.headers if plan.request else NO_HEADERS)
        return PlanPart() if self.catalogue.models[plan.model].free and not part.always else part

    async def on_failover(self, exchange: Exchange) -> None:
        """Hold what a further attempt can cost, and what the failed ones may be billed, at the price of the model that is tried.

        An attempt that costs nothing adds nothing.
        """
        hold = exchange.get(PlacedHold)
        if hold is None:
            return
        body, billed = await exchange.body(), exchange.usage.prompt_tokens
        price = self.catalogue.price(body.model, exchange[Caller].group)
        price = hold.price if price is None else ordered(price, body)
        if not billed and price == hold.price:
            return
        full = self.most(body, price, billed)
        amount = self.amount_of(full)
        if amount > hold.amount:
            await self._extend(exchange, hold, amount, self.floor(price, billed + body.prompt_tokens_estimate))
        hold.price, hold.full = price, min(full, LARGEST_AMOUNT)

    async def _extend(self, exchange: Exchange, hold: PlacedHold, amount: int, floor: int) -> None:
        if amount > LARGEST_AMOUNT:
            hold.not_extended = amount
            raise insufficient(None)
        reply = await self.wallet.extend(hold.account, exchange.id, amount=amount, floor=floor, budgets=hold.budgets)
        if reply.outcome is not HELD:
            hold.not_extended = amount if reply.outcome in (Hold.FUNDS, Hold.BUDGET) else 0
            raise hold.refusal(reply, self.calendar, self.max_holds, lambda left: 0)  # no caller reads it
        hold.amount, hold.extended = amount, True

    async def refuse(self, exchange: Exchange, reply: HoldReply) -> None:
        """Refuse a request for which nothing is held."""
        took_nothing(self, exchange)
        if reply.outcome is Hold.SKEW:
            await self.wallet.follow_clock()
        hold = exchange[PlacedHold]
        raise hold.refusal(reply, self.calendar, self.max_holds, self.fitting(await exchange.body(), hold.price))

    def note_held(self, hold: PlacedHold, reply: HoldReply) -> bool:
        """Note what the wallet says of a hold. Return whether it is held."""
        hold.marks = reply.marks
        if reply.expired:
            requests = [request_id for request_id, _ in reply.expired]
            self.log.warning("holds_expired", account=hold.account, requests=requests)
        held = reply.outcome is HELD
        if held or reply.outcome is Hold.FUNDS:
            self.alerts.balance(hold.account, reply.balance + reply.credit_line)
        return held

    async def explain(self, exchange: Exchange) -> str:
        """Return the hold, the available balance and each budget, and charge nothing.

        Expired holds count until they are swept.
        """
        wire = exchange.request.operation.wire
        body = None if wire is None or wire.free else await exchange.body()
        part = self.prepare(Plan(exchange))
        if body is None or not isinstance(part, QuotaPart) or (priced := part.priced(body)) is None:
            return "holds nothing: the request costs nothing, or the model is not open to the account"
        price, full = priced
        amount = self.amount_of(full)
        account = await self.accounts.get(exchange[Caller].account)
        if account is None or account.status is not AccountStatus.ACTIVE:
            raise refusal(Hold.INACTIVE, self.max_holds)
        available = account.balance_micros - account.held_micros + account.credit_line_micros
        answered = Usage(body.prompt_tokens_estimate, 0, "estimated", answers=1)
        spare = self.catalogue.attempts(body.model) - 1
        most = self.most(body, price, spare * body.prompt_tokens_estimate)
        shown = {"hold_micros": amount, "most_micros": most, "available_micros": available}
        exchange.charge(self, 0, price.record(answered) | shown)
        if account.holds >= self.max_holds:
            raise refusal(Hold.BUSY, self.max_holds)
        fitting = self.fitting(body, price)
        if available < amount and amount:
            raise insufficient(Shortage(amount, available, fitting(available)))
        texts = [in_words(amount, available, most, most - full)]
        for use in await self.wallet.budgets(account.id, part.budgets):
            if not use.covers(amount):
                raise over(use, self.calendar, amount, fitting)
            texts.append(described(use, self.calendar))
        return "; ".join(texts)

    def note_used(self, exchange: Exchange, settled: Settled) -> None:
        """Note for alerts how much of each budget is used."""
        for mark, used in settled.used:
            exchange[PlacedHold].note_use(self.alerts, exchange[Caller], mark, used)

    def served(self, exchange: Exchange, hold: PlacedHold) -> Price:
        """Return the price of the service tier that the answer names, also where the request asked for none."""
        asked = hold.service_tier
        told = exchange.attempts[-1].service_tier if exchange.attempts else exchange.answer_tier
        if not asked and (not told or told == "default"):
            return hold.price
        price = self.catalogue.price(exchange.model, exchange[Caller].group)
        return price.served(asked, told) if price else hold.price

    def most(self, body: Body, price: Price, billed: int = 0) -> int:
        """Return the most that a request can cost if its failed attempts are billed so many prompt tokens, in micros."""
        ceiling = body.max_tokens or self.catalogue.models[body.model].max_output_tokens
        return price.most(self.catalogue.prompt_tokens_bound(body), body.n * ceiling, billed, body.units)

    def fitting(self, body: Body, price: Price) -> Fitting:
        """Return what finds the largest `max_tokens` for which so many micros suffice."""
        bound = self.catalogue.prompt_tokens_bound(body)
        ceiling = body.max_tokens or self.catalogue.models[body.model].max_output_tokens
        ceilings = range(1, ceiling + 1)
        if body.unit:
            return lambda left: 0
        return lambda left: bisect_right(
            ceilings, left, key=lambda most: self.amount_of(price.most(bound, body.n * most))
        )

    def floor(self, price: Price, prompt_tokens: int) -> int:
        """Return what is charged if the gateway crashes, in micros."""
        return price.cost(prompt_tokens, 0) if self.on_crash == "charge_floor" else 0

    def amount_of(self, full: int) -> int:
        """Return what is held where a request can cost so much, in micros."""
        return full if self.max_hold is None else min(full, int(self.max_hold * MICROS))


class QuotaPart(PlanPart):
    """Holds and settles at the price of one model, in the budgets of one day, and of the session that `headers` name."""

    def __init__(self, quota: Quota, caller: Caller, model: str, price: Price, headers: Mapping[str, str]) -> None:
        self._quota = quota
        self._wallet = quota.wallet
        self._price = price
        self._plain = None if price.tiers or price.unit else price.record(Usage(answers=1))
        self._account = caller.account
        self.budgets = quota.calendar.budgets(caller, headers)
        self._today = quota.calendar.today()
        self._session = next((each.field[1:] for each in self.budgets if each.of_session), "")
        self.always = bool(self.budgets or quota.catalogue.models[model].fallback)
        """Whether a request that costs nothing has a hold, too: it counts, or may fall back to a model that costs something."""
        self.request = self._wallet.holding(caller.account, quota.lease_ms, quota.max_holds, self.budgets)
        self.end = self._wallet.settling(caller.account)

    def priced(self, body: Body) -> tuple[Price, int] | None:
        """Return the price and the most that one attempt can cost, in micros; None if no hold is needed.

        A request that costs nothing has a hold of nothing where it counts in budgets.
        """
        price = ordered(self._price, body) if body.unit or body.service_tier else self._price
        full = self._quota.most(body, price)
        return (price, full) if full or self.always else None

    def fill(self, exchange: Exchange, body: Body) -> tuple[int, int, str] | None:
        quota, priced = self._quota, self.priced(body)
        if self.budgets and quota.calendar.today() != self._today:
            raise StalePlan
        if priced is None:
            return None
        price, full = priced
        amount = quota.amount_of(full)
        if amount > LARGEST_AMOUNT:
            raise insufficient(None)
        exchange.charge(quota, 0)
        if self._session:
            with suppress(ValueError):  # plugins have put as many tags as there may be
                exchange.note("session", self._session)
        hold = PlacedHold(self._account, price, amount, min(full, LARGEST_AMOUNT), self.budgets, body.service_tier)
        exchange.facts[PlacedHold] = hold
        floor, fingerprint = quota.floor(price, body.prompt_tokens_estimate), str(body.size) + "x" + str(amount)
        return self._wallet.to_hold(amount, floor, fingerprint)

    def read(self, exchange: Exchange, reply: Any) -> Awaitable[None] | None:
        held = self._wallet.held(exchange.id, reply)
        return None if self._quota.note_held(exchange.facts[PlacedHold], held) else self._quota.refuse(exchange, held)

    def fill_end(self, exchange: Exchange) -> tuple[str, int, str] | None:
        hold, usage = exchange.facts.get(PlacedHold), exchange.usage
        if hold is None:
            return None
        served = self._quota.served(exchange, hold)
        cost, terms = served.of(usage), self._plain
        if terms is None or served is not self._price or not usage.answers or hold.extended or hold.not_extended:
            terms = hold.noted(served.record(usage))
        if cost > hold.full:
            hold.log_capped(self._quota.log, exchange, cost)
            cost = hold.full
            terms = {**terms, "capped_micros": cost}
        exchange.charge(self._quota, cost, terms, usage)
        kind: Literal["settle", "release"] = "settle" if cost or (usage.answers and hold.marks) else "release"
        hold.settlement = Settlement(self._account, exchange.id, cost, kind, hold.marks)
        return self._wallet.to_settle(hold.settlement)

    def read_end(self, exchange: Exchange, reply: Any) -> bool:
        settlement = exchange.facts[PlacedHold].settlement
        return settlement is not None and self._settled(exchange, self._wallet.settled(settlement, reply))

    async def lost_end(self, exchange: Exchange, error: Exception) -> None:
        if (settlement := exchange[PlacedHold].settlement) is not None:
            self._settled(exchange, await self._wallet.resolve(settlement))

    def _settled(self, exchange: Exchange, settled: Settled) -> bool:
        """Note what was charged. Return whether that is another amount than the cost."""
        changed = settled.charged != exchange.charge_micros
        if changed:
            exchange.charge(self._quota, settled.charged)
        self._quota.note_used(exchange, settled)
        return changed


def ordered(price: Price, body: Body) -> Price:
    """Return the dearest price that a request can get, by what it is billed by and the service tier that it asks for."""
    if body.unit:
        return price.by(body)
    return price.ordered(body.service_tier) if body.service_tier else price


class PlacedHold(msgspec.Struct):
    """The hold of one exchange.

    `amount`: what is held, in micros. `full`: the most that the attempts so far can cost. `budgets`: those of the caller.
    `service_tier`: the one that the request asks for. `marks`: the budgets that the hold counts in. `extended`: it grew before a
    further attempt. `not_extended`: the hold that balance and budgets did not cover. `settlement`: how it ends.
    """

    account: str
    price: Price
    amount: int
    full: int
    budgets: Sequence[Budget]
    service_tier: str
    marks: str = ""
    extended: bool = False
    not_extended: int = 0
    settlement: Settlement | None = None

    def noted(self, terms: dict[str, object]) -> dict[str, object]:
        """Return the terms of a price with how the hold grew."""
        if self.extended:
            terms["hold_micros"] = self.amount
        if self.not_extended:
            terms["hold_refused_micros"] = self.not_extended
        return terms

    def refusal(self, reply: HoldReply, calendar: Calendar, max_holds: int, fitting: Fitting) -> Refused | StoreAway:
        """Return the error for this hold, or its extension, which the wallet refused."""
        if reply.outcome is Hold.BUDGET:
            budget, ends_ms = budget_in(reply.marks, self.budgets)
            return over(BudgetUse(budget, reply.used, ends_ms), calendar, self.amount, fitting)
        if reply.outcome is Hold.FUNDS:
            least = min([reply.available, *(each.limit for each in self.budgets if not each.of_requests)])
            return insufficient(Shortage(self.amount, reply.available, fitting(least)))
        return refusal(reply.outcome, max_holds)

    def note_use(self, alerts: Alerts, caller: Caller, mark: str, used: int) -> None:
        """Note for alerts how much of a budget is used."""
        if all(budget.field != mark.partition("E")[0] for budget in self.budgets):
            return  # the store has the request with other budgets than those that it was sent with
        budget, ends_ms = budget_in(mark, self.budgets)
        if budget.of_session:
            return  # its caller chose the name
        token = caller.token_id if budget.owner == "token" else ""
        alerts.budget(caller.account, token, budget.kind, used, budget.limit, ends_at_ms=ends_ms)

    def log_capped(self, log: Any, exchange: Exchange, uncapped: int) -> None:
        """Log that the upstream used more than it was asked for: the difference is paid by the operator."""
        log.warning(
            "charge_capped",
            request_id=exchange.id,
            account=self.account,
            model=exchange.model,
            channel=exchange.channel,
            charged_micros=self.full,
            uncapped_micros=uncapped,
        )


def in_words(held: int, available: int, most: int, failed: int) -> str:
    """Return what is held for a request. It is charged `most` at most, of which `failed` is for failed attempts."""
    of_it = f", {amount(failed)} of it for failed attempts" if failed > 0 else ""
    return f"holds {amount(held)} of {amount(available)} available, and charges {amount(most)} at most{of_it}"


def insufficient(short: Shortage | None) -> Refused:
    """Return the error for a request that the balance does not cover; None: no balance covers it."""
    text = "The balance does not cover the most that this request can cost"
    if short is None:
        return Refused(402, "insufficient_balance", f"{text}. Lower max_tokens, or send less.")
    return Refused(
        402, "insufficient_balance", f"{text}: {short.figures}. Top up, or {short.cure}.", details=short.details()
    )


def refusal(outcome: Hold, max_holds: int) -> Refused | StoreAway:
    """Return the error for a hold that was refused for another reason than money."""
    match outcome:
        case Hold.BUSY:
            text = (
                f"This account has {max_holds} requests in progress, the most that it may have at once. "
                "Wait for some to end, then retry with backoff."
            )
            return Refused(429, "too_many_concurrent", text, retry_after_s=1)
        case Hold.INACTIVE | Hold.NO_ACCOUNT:
            return Refused(403, "account_inactive", "This account is not active. Ask the operator.")
        case _:
            return StoreAway(f"the wallet answered {outcome}")


class Shortage(msgspec.Struct, frozen=True):
    """The most that a request can cost and what is left for it, in micros, and the largest `max_tokens` that fits; 0 for none."""

    needed: int
    left: int
    fits: int

    @property
    def figures(self) -> str:
        """What is needed and what is left, in words."""
        return f"that is {amount(self.needed)}, and {amount(self.left)} is left"

    @property
    def cure(self) -> str:
        """What to change in the request."""
        return f"lower max_tokens to {self.fits}" if self.fits else "shorten the messages: no max_tokens is low enough"

    def details(self) -> dict[str, int]:
        """Return the same as fields of the error."""
        return {"needed_micros": self.needed, "available_micros": self.left, "max_tokens_that_fit": self.fits}


def over(use: BudgetUse, calendar: Calendar, amount: int, fitting: Fitting) -> Refused:
    """Return the error for a request that a budget does not cover. `amount`: the most that it can cost, in micros."""
    budget = use.budget
    name = f"The {budget.owner}'s {NAMES[budget.kind]}"
    resets = f"It {_reset(use, calendar)}."
    if budget.of_requests:
        text = f"{name} is used up, with the requests in progress. {resets} Ask for a larger one."
        return Refused(402, "budget_exceeded", text, should_retry=False, details={"available_requests": 0})
    left = budget.limit - use.used
    short = Shortage(amount, left, fitting(left))
    spent = "even while nothing is spent" if amount > budget.limit else "beside what is spent and requests in progress"
    text = (
        f"{name} does not cover the most that this request can cost, {spent}: {short.figures}. {resets} "
        f"Ask for a larger one, or {short.cure}."
    )
    return Refused(402, "budget_exceeded", text, should_retry=False, details=short.details())


def described(use: BudgetUse, calendar: Calendar) -> str:
    """Return what a budget counts now, in words."""
    if use.budget.of_requests:
        used = f"has used {use.used} of {use.budget.limit} requests"
    else:
        used = f"has used {amount(use.used)} of {amount(use.budget.limit)}"
    return f"the {use.budget.owner}'s {NAMES[use.budget.kind]} {used} and {_reset(use, calendar)}"


def _reset(use: BudgetUse, calendar: Calendar) -> str:
    if use.budget.of_session:
        return "is forgotten an hour after the session's last request"
    return "does not reset" if use.ends_ms is None else f"resets at {calendar.ends_at(use.ends_ms)}"
