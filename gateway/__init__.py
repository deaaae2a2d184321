"""The public names: what a plugin may import. Everything else may change without notice.

Plugins import from here and from `gateway.testing` alone; the shipped ones do, too. A module is imported when a name of it is used
first: commands need few of them, and all together take longer to import than most commands to run.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gateway.base import compiled

if TYPE_CHECKING:
    from gateway.alerts.alerts import Alerts
    from gateway.base.addresses import address_of, network_of
    from gateway.base.amounts import MICROS, amount
    from gateway.base.errors import Refused, StoreAway, StoreError, model_not_found
    from gateway.base.ids import Clock, arrival_ms, drawn, utc
    from gateway.base.leaky_buckets import LeakyBuckets
    from gateway.chain.plugin import Plan, PlanPart, Plugin, StalePlan, took_nothing
    from gateway.chain.services import Services
    from gateway.chat.answers import Delta
    from gateway.chat.dialect import AnswerDelta, AnswerReader, ChatRequest, Dialect, LinesDialect
    from gateway.chat.request import Body
    from gateway.chat.usage import Usage
    from gateway.domain.budgets import Budget, BudgetUse, Calendar, budget_in
    from gateway.domain.catalogue import Catalogue, RoutingOptions, matches
    from gateway.domain.exchange import Attempt, Exchange, Outcome, Request
    from gateway.domain.facts import (
        AccountLimits,
        AskedFor,
        Budgets,
        Caller,
        Candidate,
        CircuitBreaker,
        FallbackModel,
        Route,
        Trace,
    )
    from gateway.domain.prices import Price
    from gateway.domain.reply import Reply
    from gateway.operations.operation import Operation
    from gateway.store.accounts import AccountStatus
    from gateway.store.circuit_breaker import AccountBreaker, ChannelBreaker
    from gateway.store.client.client import Script
    from gateway.store.client.steps import HOLE, ID, Declared, Step
    from gateway.store.limits import Limited, Rate, RateLimiter, Taken, TokenLimits
    from gateway.store.money.scripts import Hold, HoldReply, Settled, Settlement
    from gateway.store.tokens import Authenticated, TokenRefused, Tokens, invalid_token
    from gateway.usage.log import SentArrival
    from gateway.usage.record import (
        AttemptRecord,
        PreparedRecord,
        Record,
        hashed_reference,
        reference_in,
        shown_message,
        shown_name,
    )

compiled.use()  # before any module is imported that is compiled

__all__ = [
    "HOLE",
    "ID",
    "MICROS",
    "AccountBreaker",
    "AccountLimits",
    "AccountStatus",
    "Alerts",
    "AnswerDelta",
    "AnswerReader",
    "AskedFor",
    "Attempt",
    "AttemptRecord",
    "Authenticated",
    "Body",
    "Budget",
    "BudgetUse",
    "Budgets",
    "Calendar",
    "Caller",
    "Candidate",
    "Catalogue",
    "ChannelBreaker",
    "ChatRequest",
    "CircuitBreaker",
    "Clock",
    "Declared",
    "Delta",
    "Dialect",
    "Exchange",
    "FallbackModel",
    "Hold",
    "HoldReply",
    "LeakyBuckets",
    "Limited",
    "LinesDialect",
    "Operation",
    "Outcome",
    "Plan",
    "PlanPart",
    "Plugin",
    "PreparedRecord",
    "Price",
    "Rate",
    "RateLimiter",
    "Record",
    "Refused",
    "Reply",
    "Request",
    "Route",
    "RoutingOptions",
    "Script",
    "SentArrival",
    "Services",
    "Settled",
    "Settlement",
    "StalePlan",
    "Step",
    "StoreAway",
    "StoreError",
    "Taken",
    "TokenLimits",
    "TokenRefused",
    "Tokens",
    "Trace",
    "Usage",
    "address_of",
    "amount",
    "arrival_ms",
    "budget_in",
    "drawn",
    "hashed_reference",
    "invalid_token",
    "matches",
    "model_not_found",
    "network_of",
    "reference_in",
    "shown_message",
    "shown_name",
    "took_nothing",
    "utc",
]

_PLACES = {
    "gateway.alerts.alerts": "Alerts",
    "gateway.base.addresses": "address_of network_of",
    "gateway.base.amounts": "MICROS amount",
    "gateway.base.errors": "Refused StoreAway StoreError model_not_found",
    "gateway.base.ids": "Clock arrival_ms drawn utc",
    "gateway.base.leaky_buckets": "LeakyBuckets",
    "gateway.chain.plugin": "Plan PlanPart Plugin StalePlan took_nothing",
    "gateway.chain.services": "Services",
    "gateway.chat.answers": "Delta",
    "gateway.chat.dialect": "AnswerDelta AnswerReader ChatRequest Dialect LinesDialect",
    "gateway.chat.request": "Body",
    "gateway.chat.usage": "Usage",
    "gateway.domain.budgets": "Budget BudgetUse Calendar budget_in",
    "gateway.domain.catalogue": "Catalogue RoutingOptions matches",
    "gateway.domain.exchange": "Attempt Exchange Outcome Request",
    "gateway.operations.operation": "Operation",
    "gateway.domain.facts": "AccountLimits AskedFor Budgets Caller Candidate CircuitBreaker FallbackModel Route Trace",
    "gateway.domain.prices": "Price",
    "gateway.domain.reply": "Reply",
    "gateway.store.accounts": "AccountStatus",
    "gateway.store.circuit_breaker": "AccountBreaker ChannelBreaker",
    "gateway.store.client.client": "Script",
    "gateway.store.client.steps": "HOLE ID Declared Step",
    "gateway.store.limits": "Limited Rate RateLimiter Taken TokenLimits",
    "gateway.store.money.scripts": "Hold HoldReply Settled Settlement",
    "gateway.store.tokens": "Authenticated TokenRefused Tokens invalid_token",
    "gateway.usage.log": "SentArrival",
    "gateway.usage.record": "AttemptRecord PreparedRecord Record hashed_reference reference_in shown_message shown_name",
}
"""The modules of the public names."""

_MODULES = {name: module for module, names in _PLACES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module `gateway` has no public name `{name}`")
    value = globals()[name] = getattr(import_module(module), name)
    return value


def __dir__() -> list[str]:
    return [*globals(), *_MODULES]
