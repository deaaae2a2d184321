"""The path table, the list of models, and advice for paths that are not served.

`GET /v1/models` lists the models that a caller may use, with OpenAI's fields, Anthropic's, and OpenRouter's of prices: what
this caller pays, as currency units for a token or a request, with the ratio of its group, as exact decimals in strings. What
the file does not tell is left out. What channels cost, and which there are, is never shown.

A caller of a path that is not served is told which are; one whose base address has too much, what to remove.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Final

import msgspec

from gateway.base.amounts import MICROS
from gateway.base.errors import Refused, model_not_found
from gateway.chain.services import Services
from gateway.domain.budgets import Calendar
from gateway.domain.catalogue import Catalogue
from gateway.domain.exchange import Exchange
from gateway.domain.facts import Caller
from gateway.domain.prices import PER_TOKENS, Price
from gateway.domain.reply import Reply
from gateway.operations.kept import gone, unknown
from gateway.operations.operation import MISDIRECTED, SERVED, Operation
from gateway.operations.responses import StoredResponse
from gateway.proxy.kept_answers import ask
from gateway.proxy.pool import UpstreamPool
from gateway.server.own_records import Lookups, account_of, ledger_of, request_of, requests_of, usage_of
from gateway.store.channels import Condition
from gateway.usage.record import shown_name

KNOWN_PATHS = (
    f"Known here: {', '.join(f'POST /v1{wire.path}' for wire in SERVED.values())}, GET /v1/models, "
    "GET /v1/models/{id}, GET /v1/account, "
    "GET /v1/account/ledger, GET /v1/usage, GET /v1/requests, GET /v1/requests/{id}, GET and DELETE /v1/responses/{id}, "
    "GET /v1/responses/{id}/input_items, POST /v1/responses/{id}/cancel."
)

OPERATIONS = {f"/v1{wire.path}": operation for operation, wire in SERVED.items()} | {
    "/v1/models": Operation.MODELS,
    "/v1/account": Operation.ACCOUNT,
    "/v1/account/ledger": Operation.LEDGER,
    "/v1/usage": Operation.USAGE,
    "/v1/requests": Operation.REQUESTS,
}
HEALTH = ("/healthz", "/readyz")
METHODS = {path: "GET" if operation.wire is None else "POST" for path, operation in OPERATIONS.items()}

POSTED: Final = {path: operation for path, operation in OPERATIONS.items() if operation.wire is not None}

PLACES: Final = 18
"""Decimals of a price: six of an amount, six of a token in a million, and six of the ratio."""

LONGER: Final = re.compile(
    r"(/v1)?(?P<more>/chat/completions|/chat|/models)/(v1/)?(chat/completions|models|responses|embeddings|messages)(/|$)"
)
RESPONSES: Final = "/v1/responses"
ONE: Final = r"/v1/responses/[A-Za-z0-9_~=:-][A-Za-z0-9_.~=:-]{0,127}"
STORED: Final = re.compile(f"(?:GET|DELETE) {ONE}|GET {ONE}/input_items|POST {ONE}/cancel")
"""A method and a path that are about an answer that an upstream keeps."""


class LocalRoutes:
    """Answers the operations that need no upstream, once the chain has admitted the request."""

    def __init__(self, services: Services, lookups: Lookups, pool: UpstreamPool) -> None:
        self._services = services
        self._pool = pool
        self._lookups = lookups
        self._models = ModelList(services.catalogue)
        self._store = services.store
        self._calendar = Calendar(services.catalogue.time_zone, services.clock, services.catalogue.session_headers)

    async def __call__(self, exchange: Exchange) -> Reply:
        """Return the reply to an admitted request. Raises `Refused`."""
        request = exchange.request
        match request.operation:
            case Operation.MODELS:
                wanted, caller = request.argument, exchange.get(Caller)
                return Reply(body=self._models.one(wanted, caller) if wanted else self._models.all(caller))
            case Operation.ACCOUNT:
                caller = _caller(exchange)
                return _json(await account_of(exchange, caller, self._store, self._calendar))
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
            case Operation.STORED_RESPONSES:
                return Reply(body=await self._stored(exchange, _caller(exchange)))
            case _:
                raise misdirected(request.method, request.path)

    async def _stored(self, exchange: Exchange, caller: Caller) -> bytes:
        """Return what the upstream says of an answer of this account that it keeps. Raises `Refused`."""
        request, ids, catalogue = exchange.request, self._store.kept_ids, self._services.catalogue
        name, _, more = request.argument.partition("/")
        wire = StoredResponse(request.method, name, more, request.query)
        kept = (await ids.find(caller.account, [name])).get(name)
        if kept is None or not catalogue.allows(caller, kept.model):
            raise unknown(name)
        exchange.channel, exchange.model = kept.channel, kept.model

        async def asked() -> bytes:
            (channel,) = await self._store.channels.show([kept.channel])
            if channel.condition is Condition.DISABLED:
                raise gone()
            said = await ask(self._pool, catalogue.channels, exchange.generation, kept, wire)
            if request.method == "DELETE":
                await ids.forget(caller.account, name)
            return said

        return await self._lookups.run(caller.account, asked)


def misdirected(method: str, path: str) -> Refused:
    """Return the error for a path or method that is not in the table."""
    if path.startswith("/v1/v1"):
        text = "The base address already ends in /v1: remove the repeated /v1 from the path."
        return Refused(404, "unknown_path", text)
    if f"/v1{path}" in METHODS:
        return Refused(404, "unknown_path", "The base address must end in /v1: point the client at .../v1.")
    if "://" in path.partition("/v1")[0]:
        text = "The request line must have the path alone, as in GET /v1/models: this is not a proxy."
        return Refused(404, "unknown_path", text)
    if path == RESPONSES and method == "GET":
        text = "Send POST /v1/responses over HTTP: it is not served over WebSocket."
        return Refused(426, "upgrade_required", text)
    if (longer := LONGER.match(path)) is not None:
        text = "The base address must end in /v1: this one goes on with the path of a request, which the client adds itself."
        return Refused(404, "unknown_path", f"{text} Remove {longer['more']} from the end of the base address.")
    if path.endswith("/") and path.rstrip("/") in ("/v1/chat/completions", "/v1/models"):
        return Refused(404, "unknown_path", "Remove the slash at the end of the path.")
    known = path in HEALTH or path.startswith(("/v1/models/", "/v1/requests/"))
    allowed = METHODS.get(path) or ("GET" if known else "")
    if allowed and method != allowed:
        methods = {"Allow": "GET, HEAD" if allowed == "GET" else allowed}
        return Refused(405, "method_not_allowed", f"Use {allowed} here.", headers=methods)
    return Refused(404, "unknown_path", f"There is no {shown_name(path)} here. {KNOWN_PATHS}")


def operation_of(method: str, path: str) -> tuple[Operation, str]:
    """Return the operation of a path, and its argument. Paths match exactly: no decoding, merging or case folding.

    HEAD is GET: the answer is written without its body.
    """
    method = "GET" if method == "HEAD" else method
    if METHODS.get(path) == method:
        return OPERATIONS[path], ""
    for prefix, operation in (("/v1/models/", Operation.MODELS), ("/v1/requests/", Operation.REQUESTS)):
        if method == "GET" and path.startswith(prefix) and len(path) > len(prefix):
            return operation, path.removeprefix(prefix)
    if path.startswith(RESPONSES) and path not in METHODS and STORED.fullmatch(f"{method} {path}"):
        return Operation.STORED_RESPONSES, path.removeprefix(f"{RESPONSES}/")
    return MISDIRECTED, ""


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


class ModelList:
    """The models of one configuration. Each is encoded once for a group."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._encoded: dict[tuple[str, str], msgspec.Raw] = {}

    def all(self, caller: Caller | None) -> bytes:
        """Return all models that the caller may use, as JSON. None stands for a gateway without accounts."""
        group = "" if caller is None else caller.group
        names = self._names(caller)
        data = [self._model(name, group) for name in names]
        ends = {"first_id": names[0], "last_id": names[-1]} if names else {"first_id": None, "last_id": None}
        return msgspec.json.encode({"object": "list", "data": data, "has_more": False, **ends})

    def one(self, name: str, caller: Caller | None) -> bytes:
        """Return one of these models. Raises `Refused` for any other name."""
        if name not in self._names(caller):
            raise model_not_found(name)
        return bytes(self._model(name, "" if caller is None else caller.group))

    def _names(self, caller: Caller | None) -> list[str]:
        if caller is None:
            return [*self._catalogue.models, *self._catalogue.aliases]
        return self._catalogue.visible(caller)

    def _model(self, name: str, group: str) -> msgspec.Raw:
        encoded = self._encoded.get((name, group))
        if encoded is None:
            encoded = msgspec.Raw(msgspec.json.encode(self._fields(name, group)))
            self._encoded[name, group] = encoded
        return encoded

    def _fields(self, name: str, group: str) -> dict[str, object]:
        named = self._catalogue.aliases.get(name, name)
        model, price = self._catalogue.models[named], self._catalogue.price(named, group)
        fields: dict[str, object] = {"id": name, "object": "model", "created": 0, "owned_by": "sluicegate"}
        fields |= {"type": "model", "display_name": name, "created_at": "1970-01-01T00:00:00Z"}
        limits = {"max_completion_tokens": model.max_output_tokens}
        if model.context_length is not None:
            fields["context_length"] = limits["context_length"] = model.context_length
        fields |= {"max_output_tokens": model.max_output_tokens, "top_provider": limits}
        if price is not None:
            fields["pricing"] = _pricing(price)
        return fields


def _pricing(price: Price) -> dict[str, object]:
    """Return a price as OpenRouter writes it, and those of pictures, seconds and characters by these names.

    A tier begins at `min_prompt_tokens`, that many included.
    """
    tokens = {} if price.units and not (price.most_input or price.most_output) else _rates(price)
    pricing: dict[str, object] = {**tokens, "request": _text(price.request * PER_TOKENS, price.ratio)}
    pricing |= {name: _text(rate, price.ratio) for name, rate in price.units}
    if price.tiers:
        pricing["overrides"] = [{"min_prompt_tokens": tier.above + 1, **_rates(tier)} for tier in price.tiers]
    if price.service_tiers:
        pricing["service_tiers"] = {name: float(factor) for name, factor in price.service_tiers}
    return pricing


def _rates(price: Price) -> dict[str, str]:
    rates = {
        "prompt": price.input,
        "completion": price.output,
        "input_cache_read": price.cached_input,
        "input_cache_write": price.cache_write,
    }
    return {name: _text(rate, price.ratio) for name, rate in rates.items()}


def _text(rate: int, ratio: Fraction) -> str:
    """Return micros for a million tokens as currency units for one, with all decimals and without an exponent."""
    amount = Fraction(rate, PER_TOKENS * MICROS) * ratio
    whole, part = divmod(int(amount * 10**PLACES), 10**PLACES)
    return f"{whole}.{part:0{PLACES}}".rstrip("0").rstrip(".")
