"""The names a plugin author may import. Nothing else is public."""

from gateway.chat.usage import Usage
from gateway.errors import Refused
from gateway.exchange import Attempt, Exchange, Operation, Outcome, Reply, Request
from gateway.facts import Caller, Candidate, Limits, Route
from gateway.plugin import Plugin
from gateway.services import Clock, Services

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
