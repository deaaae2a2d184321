"""The spans of one request, with the attributes of OpenTelemetry's semantic conventions for HTTP servers and for generative AI."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from typing import Final
from urllib.parse import urlsplit

from opentelemetry.trace import Span, SpanKind, StatusCode, TracerProvider, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from gateway import Attempt, Body, Caller, Exchange, Operation, Outcome

NS: Final = 1_000_000_000

Values = dict[str, str | int | float | bool]


class Spans:
    """Makes spans. `channels`: their addresses; `providers`: the provider's name of those that are not `openai`."""

    def __init__(
        self, exported: TracerProvider, channels: Mapping[str, str], providers: Mapping[str, str], *, continues: bool
    ) -> None:
        self._tracer = exported.get_tracer("sluicegate", version("sluicegate"))
        self._servers = {name: _server(url) for name, url in channels.items()}
        self._providers = providers
        self._context = TraceContextTextMapPropagator() if continues else None

    def add(self, exchange: Exchange, body: Body | None) -> None:
        """Make the spans of a request that has ended. `body`: that of a request with attempts."""
        ended = exchange.ended or exchange.started
        parent = self._context.extract(exchange.request.headers) if self._context else None
        values, began = _of_request(exchange), _ns(exchange, exchange.started)
        name = f"{exchange.request.method} {values.get('http.route', '')}".strip()
        server = self._tracer.start_span(name, parent, SpanKind.SERVER, values, start_time=began)
        if body is not None and server.is_recording():
            within = set_span_in_context(server)
            for attempt in exchange.attempts:
                last = attempt is exchange.attempts[-1]
                values, began = self._of_attempt(exchange, attempt, body, last=last), _ns(exchange, attempt.began)
                name = f"chat {attempt.model}"
                client = self._tracer.start_span(name, within, SpanKind.CLIENT, values, start_time=began)
                error = attempt.error or (_error(exchange) if last else "")
                _end(client, error, _ns(exchange, ended if last else attempt.failed or ended))
        failed = exchange.status >= 500 or exchange.outcome is Outcome.INTERNAL_ERROR
        _end(server, _error(exchange) if failed else "", _ns(exchange, ended))

    def _of_attempt(self, exchange: Exchange, attempt: Attempt, body: Body, *, last: bool) -> Values:
        usage, known = attempt.usage, attempt.usage.source != "none"
        address, port = self._servers.get(attempt.channel, (None, None))
        first_s = None if exchange.first_byte is None else exchange.first_byte - attempt.began
        values: dict[str, str | int | float | bool | None] = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": self._providers.get(attempt.channel, "openai"),
            "gen_ai.request.model": attempt.model,
            "gen_ai.request.stream": body.stream or None,
            "gen_ai.request.max_tokens": body.max_tokens,
            "gen_ai.request.choice.count": body.n if body.n > 1 else None,
            "gen_ai.response.id": attempt.completion_id or None,
            "gen_ai.response.time_to_first_chunk": first_s if body.stream and last else None,
            "gen_ai.usage.input_tokens": usage.prompt_tokens if known else None,
            "gen_ai.usage.output_tokens": usage.completion_tokens if known else None,
            "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens or None,
            "gen_ai.usage.cache_write.input_tokens": usage.cache_write_tokens or None,
            "server.address": address,
            "server.port": port,
            "http.response.status_code": attempt.status or None,
            "sluicegate.channel": attempt.channel,
        }
        return {name: value for name, value in values.items() if value is not None}


def _of_request(exchange: Exchange) -> Values:
    request, caller = exchange.request, exchange.get(Caller)
    route = "" if request.operation is Operation.MISDIRECTED else request.path
    values: Values = {
        "http.request.method": request.method,
        "http.route": f"{route.removesuffix(request.argument)}{{id}}" if request.argument and route else route,
        "http.response.status_code": exchange.status,
        "url.path": request.path,
        "url.scheme": "http",
        "client.address": request.peer,
        "sluicegate.request.id": exchange.id,
        "sluicegate.account": caller.account if caller else exchange.account,
        "sluicegate.token.id": caller.token_id if caller else exchange.token_id,
        "sluicegate.group": caller.group if caller else exchange.group,
        "sluicegate.model": exchange.model,
        "sluicegate.outcome": str(exchange.outcome or ""),
        "sluicegate.error.code": exchange.error.code if exchange.error else "",
        "sluicegate.refused_by": exchange.refused_by,
        "sluicegate.charge_micros": exchange.charge_micros,
    }
    return {name: value for name, value in values.items() if value}


def _error(exchange: Exchange) -> str:
    if exchange.error is not None:
        return exchange.error.code
    return "" if exchange.outcome is Outcome.COMPLETED else str(exchange.outcome)


def _end(span: Span, error: str, at_ns: int) -> None:
    if error:
        span.set_attribute("error.type", error)
        span.set_status(StatusCode.ERROR)
    span.end(at_ns)


def _server(url: str) -> tuple[str | None, int | None]:
    parts = urlsplit(url)
    return parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)


def _ns(exchange: Exchange, moment: float) -> int:
    """Return a time of `time.monotonic()` as nanoseconds since 1970."""
    return int((exchange.arrived_at + moment - exchange.started) * NS)
