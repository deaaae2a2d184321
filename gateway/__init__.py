"""The public names: what a plugin may import. Everything else may change without notice.

Plugins import from here and from `gateway.testing` alone; the shipped ones do, too. A module is imported when a name of it is used
first: commands need few of them, and all together take longer to import than most commands to run.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gateway.addresses import address_of, network_of
    from gateway.alerts.alerts import Alerts
    from gateway.amounts import MICROS, amount
    from gateway.attempt import Attempt
    from gateway.budgets import Budget, BudgetUse, Calendar, budget_in
    from gateway.catalogue import Catalogue, matches
    from gateway.chat.deltas import Delta
    from gateway.chat.dialect import AnswerDelta, AnswerReader, ChatRequest, Dialect
    from gateway.chat.request import Body
    from gateway.chat.usage import Usage
    from gateway.errors import Refused, StoreAway, StoreError, model_not_found
    from gateway.exchange import Exchange, Operation, Outcome, Request
    from gateway.facts import AccountLimits, AskedFor, Budgets, Caller, Candidate, CircuitBreaker, Limits, Route, Trace
    from gateway.plugin import Plugin
    from gateway.prices import Price
    from gateway.reply import Reply
    from gateway.request_id import arrival_ms, utc
    from gateway.services import Clock, Services
    from gateway.store.account_health import AccountHealth
    from gateway.store.accounts import AccountStatus
    from gateway.store.channel_health import ChannelHealth
    from gateway.store.client.client import Script
    from gateway.store.client.step import Step
    from gateway.store.known_tokens import Authenticated
    from gateway.store.limits import Limited, Taken, TokenLimits
    from gateway.store.money.results import Hold, HoldReply, Settled
    from gateway.store.tokens import TokenRefused, invalid_token
    from gateway.usage.record import AttemptRecord, Record
    from gateway.usage.reference import hashed_reference, reference_in
    from gateway.usage.shown_name import shown_name

__all__ = [
    "MICROS",
    "AccountHealth",
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
    "ChannelHealth",
    "ChatRequest",
    "CircuitBreaker",
    "Clock",
    "Delta",
    "Dialect",
    "Exchange",
    "Hold",
    "HoldReply",
    "Limited",
    "Limits",
    "Operation",
    "Outcome",
    "Plugin",
    "Price",
    "Record",
    "Refused",
    "Reply",
    "Request",
    "Route",
    "Script",
    "Services",
    "Settled",
    "Step",
    "StoreAway",
    "StoreError",
    "Taken",
    "TokenLimits",
    "TokenRefused",
    "Trace",
    "Usage",
    "address_of",
    "amount",
    "arrival_ms",
    "budget_in",
    "hashed_reference",
    "invalid_token",
    "matches",
    "model_not_found",
    "network_of",
    "reference_in",
    "shown_name",
    "utc",
]

_PLACES = {
    "gateway.addresses": "address_of network_of",
    "gateway.alerts.alerts": "Alerts",
    "gateway.amounts": "MICROS amount",
    "gateway.attempt": "Attempt",
    "gateway.budgets": "Budget BudgetUse Calendar budget_in",
    "gateway.catalogue": "Catalogue matches",
    "gateway.chat.deltas": "Delta",
    "gateway.chat.dialect": "AnswerDelta AnswerReader ChatRequest Dialect",
    "gateway.chat.request": "Body",
    "gateway.chat.usage": "Usage",
    "gateway.errors": "Refused StoreAway StoreError model_not_found",
    "gateway.exchange": "Exchange Operation Outcome Request",
    "gateway.facts": "AccountLimits AskedFor Limits Budgets Caller Candidate CircuitBreaker Route Trace",
    "gateway.plugin": "Plugin",
    "gateway.prices": "Price",
    "gateway.reply": "Reply",
    "gateway.request_id": "arrival_ms utc",
    "gateway.services": "Clock Services",
    "gateway.store.account_health": "AccountHealth",
    "gateway.store.accounts": "AccountStatus",
    "gateway.store.channel_health": "ChannelHealth",
    "gateway.store.client.client": "Script",
    "gateway.store.client.step": "Step",
    "gateway.store.known_tokens": "Authenticated",
    "gateway.store.limits": "Limited Taken TokenLimits",
    "gateway.store.money.results": "Hold HoldReply Settled",
    "gateway.store.tokens": "TokenRefused invalid_token",
    "gateway.usage.record": "AttemptRecord Record",
    "gateway.usage.reference": "hashed_reference reference_in",
    "gateway.usage.shown_name": "shown_name",
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
