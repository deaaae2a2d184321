"""The path table, and the operations that need no upstream: models, account, one request's record."""

from __future__ import annotations

import msgspec

from gateway.budgets import Calendar
from gateway.errors import Refused, model_not_found
from gateway.exchange import Exchange, Operation, Reply
from gateway.facts import Caller
from gateway.server.account import account_of
from gateway.server.elsewhere import advice
from gateway.services import Services

BASE_ENDS_IN_V1 = "The base address already ends in /v1: remove the repeated /v1 from the path."
BASE_LACKS_V1 = "The base address must end in /v1: point the client at .../v1."
ABSOLUTE = "The request line must have the path alone, as in GET /v1/models: this is not a proxy."
KNOWN_PATHS = "Known here: POST /v1/chat/completions, GET /v1/models, GET /v1/account, GET /v1/requests/{id}."


class LocalRoutes:
    """Answers the operations that need no upstream, once the chain has admitted the request."""

    def __init__(self, services: Services) -> None:
        self._catalogue = services.catalogue
        self._store = services.store
        self._calendar = Calendar(services.catalogue.time_zone, services.clock)

    async def __call__(self, exchange: Exchange) -> Reply:
        """Return the reply to an admitted request. Raises `Refused`."""
        match exchange.request.operation:
            case Operation.MODELS:
                return self._models(exchange)
            case Operation.ACCOUNT:
                caller = _caller(exchange)
                return _json(await account_of(caller, self._store, self._calendar, exchange.response_headers))
            case Operation.REQUESTS:
                return await self._record(exchange)
            case _:
                raise misdirected(exchange.request.method, exchange.request.path)

    def _models(self, exchange: Exchange) -> Reply:
        caller = exchange.get(Caller)
        names = list(self._catalogue.models) if caller is None else self._catalogue.visible(caller)
        wanted = exchange.request.argument
        if not wanted:
            return _json({"object": "list", "data": [_model(name) for name in names]})
        if wanted not in names:
            raise model_not_found()
        return _json(_model(wanted))

    async def _record(self, exchange: Exchange) -> Reply:
        caller = _caller(exchange)
        record = await self._store.usage.find(exchange.request.argument, account=caller.account)
        if record is None:
            raise Refused(
                404,
                "request_not_found",
                "No request with this id has ended in this account. Check it against x-request-id, or ask again later.",
            )
        fields = msgspec.to_builtins(record)
        return _json({key: value for key, value in fields.items() if key not in OPERATOR_FIELDS})


OPERATOR_FIELDS = (
    *("channel", "attempts", "upstream_request_id", "upstream_usage"),
    *("cost_micros", "margin_micros", "cost_price", "upstream_cost_micros"),
)
"""Fields of a record that callers do not see, because they name upstreams or say what these cost."""


def misdirected(method: str, path: str) -> Refused:
    """Return the error for a path or method that is not in the table."""
    if path.startswith("/v1/v1"):
        return Refused(404, "unknown_path", BASE_ENDS_IN_V1)
    if path in ("/chat/completions", "/models"):
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
}
HEALTH = ("/healthz", "/readyz")
METHODS = {"/v1/chat/completions": "POST", "/v1/models": "GET", "/v1/account": "GET"}


def _caller(exchange: Exchange) -> Caller:
    caller = exchange.get(Caller)
    if caller is None:
        raise Refused(
            404,
            "unknown_path",
            "This gateway runs without accounts: its chain has no plugin that provides Caller.",
        )
    return caller


def _model(name: str) -> dict[str, object]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "sluicegate"}


def _json(value: object) -> Reply:
    return Reply(body=msgspec.json.encode(value))
