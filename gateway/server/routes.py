"""The path table. The answers to operations that need no upstream are in files of their own."""

from __future__ import annotations

import msgspec

from gateway.budgets import Calendar
from gateway.errors import Refused
from gateway.exchange import Exchange, Operation
from gateway.facts import Caller
from gateway.reply import Reply
from gateway.server.account import account_of
from gateway.server.elsewhere import advice
from gateway.server.ledger import ledger_of
from gateway.server.lookups import Lookups
from gateway.server.models import ModelList
from gateway.server.requests import request_of, requests_of
from gateway.server.usage import usage_of
from gateway.services import Services

BASE_ENDS_IN_V1 = "The base address already ends in /v1: remove the repeated /v1 from the path."
BASE_LACKS_V1 = "The base address must end in /v1: point the client at .../v1."
ABSOLUTE = "The request line must have the path alone, as in GET /v1/models: this is not a proxy."
KNOWN_PATHS = (
    "Known here: POST /v1/chat/completions, GET /v1/models, GET /v1/account, GET /v1/account/ledger, GET /v1/usage, "
    "GET /v1/requests, GET /v1/requests/{id}."
)


class LocalRoutes:
    """Answers the operations that need no upstream, once the chain has admitted the request."""

    def __init__(self, services: Services, lookups: Lookups) -> None:
        self._services = services
        self._lookups = lookups
        self._models = ModelList(services.catalogue)
        self._store = services.store
        self._calendar = Calendar(services.catalogue.time_zone, services.clock)

    async def __call__(self, exchange: Exchange) -> Reply:
        """Return the reply to an admitted request. Raises `Refused`."""
        request = exchange.request
        match request.operation:
            case Operation.MODELS:
                wanted, caller = request.argument, exchange.get(Caller)
                return Reply(body=self._models.one(wanted, caller) if wanted else self._models.all(caller))
            case Operation.ACCOUNT:
                caller = _caller(exchange)
                return _json(await account_of(caller, self._store, self._calendar, exchange.response_headers))
            case Operation.LEDGER:
                return Reply(body=await ledger_of(_caller(exchange).account, request.query, self._store, self._lookups))
            case Operation.USAGE:
                return Reply(
                    body=await usage_of(_caller(exchange).account, request.query, self._services, self._lookups)
                )
            case Operation.REQUESTS if request.argument:
                return _json(await request_of(_caller(exchange).account, request.argument, self._store))
            case Operation.REQUESTS:
                return Reply(
                    body=await requests_of(_caller(exchange).account, request.query, self._store, self._lookups)
                )
            case _:
                raise misdirected(request.method, request.path)


def misdirected(method: str, path: str) -> Refused:
    """Return the error for a path or method that is not in the table."""
    if path.startswith("/v1/v1"):
        return Refused(404, "unknown_path", BASE_ENDS_IN_V1)
    if f"/v1{path}" in METHODS:
        return Refused(404, "unknown_path", BASE_LACKS_V1)
    if "://" in path.partition("/v1")[0]:
        return Refused(404, "unknown_path", ABSOLUTE)
    if said := advice(path):
        return Refused(404, "unknown_path", said)
    known = path in HEALTH or path.startswith(("/v1/models/", "/v1/requests/"))
    allowed = METHODS.get(path) or ("GET" if known else "")
    if allowed and method != allowed:
        return Refused(405, "method_not_allowed", f"Use {allowed} here.", headers={"Allow": allowed})
    return Refused(404, "unknown_path", KNOWN_PATHS)


def operation_of(method: str, path: str) -> tuple[Operation, str]:
    """Return the operation of a path, and its argument. Paths match exactly: no decoding, merging or case folding."""
    if METHODS.get(path) == method:
        return OPERATIONS[path], ""
    for prefix, operation in (("/v1/models/", Operation.MODELS), ("/v1/requests/", Operation.REQUESTS)):
        if method == "GET" and path.startswith(prefix) and len(path) > len(prefix):
            return operation, path.removeprefix(prefix)
    return Operation.MISDIRECTED, ""


OPERATIONS = {
    "/v1/chat/completions": Operation.CHAT,
    "/v1/models": Operation.MODELS,
    "/v1/account": Operation.ACCOUNT,
    "/v1/account/ledger": Operation.LEDGER,
    "/v1/usage": Operation.USAGE,
    "/v1/requests": Operation.REQUESTS,
}
HEALTH = ("/healthz", "/readyz")
METHODS = {path: "POST" if operation is Operation.CHAT else "GET" for path, operation in OPERATIONS.items()}


def _caller(exchange: Exchange) -> Caller:
    caller = exchange.get(Caller)
    if caller is None:
        raise Refused(
            404,
            "unknown_path",
            "This gateway runs without accounts: its chain has no plugin that provides Caller.",
        )
    return caller


def _json(value: object) -> Reply:
    return Reply(body=msgspec.json.encode(value))
