"""The names a plugin author may import. Nothing else is public."""

from gateway.errors import Refused
from gateway.exchange import Attempt, Exchange, Operation, Outcome, Reply, Request, Usage
from gateway.facts import Caller, Candidate, Limits, Route
from gateway.plugin import Clock, Plugin, Services

__all__ = [
    "Attempt",
    "Caller",
    "Candidate",
    "Clock",
    "Exchange",
    "Limits",
    "Operation",
    "Outcome",
    "Plugin",
    "Refused",
    "Reply",
    "Request",
    "Route",
    "Services",
    "Usage",
]
