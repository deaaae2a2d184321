"""The public names: what a plugin may import. Everything else may change without notice.

Plugins import from here and from `gateway.testing` alone; the shipped ones do, too.
"""

from gateway.addresses import address_of, network_of
from gateway.alerts.alerts import Alerts
from gateway.budgets import Budget, BudgetUse, Calendar, budget_in
from gateway.catalogue import Catalogue, matches
from gateway.chat.usage import Usage
from gateway.errors import Refused, StoreAway, StoreError, model_not_found
from gateway.exchange import Attempt, Exchange, Operation, Outcome, Reply, Request
from gateway.facts import AccountLimits, Budgets, Caller, Candidate, CircuitBreaker, Route
from gateway.plugin import Plugin
from gateway.prices import MICROS, Price, amount
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
from gateway.usage.shown_name import shown_name

Limits = AccountLimits
"""The earlier name of `AccountLimits`."""

__all__ = [
    "MICROS",
    "AccountHealth",
    "AccountLimits",
    "AccountStatus",
    "Alerts",
    "Attempt",
    "AttemptRecord",
    "Authenticated",
    "Budget",
    "BudgetUse",
    "Budgets",
    "Calendar",
    "Caller",
    "Candidate",
    "Catalogue",
    "ChannelHealth",
    "CircuitBreaker",
    "Clock",
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
    "Usage",
    "address_of",
    "amount",
    "arrival_ms",
    "budget_in",
    "invalid_token",
    "matches",
    "model_not_found",
    "network_of",
    "shown_name",
    "utc",
]
