"""The spans of one request, with the attributes of OpenTelemetry's semantic conventions, and the queue in which they wait.

The conventions are those for HTTP servers and for generative AI. This file imports OpenTelemetry when it is loaded, so it needs
`sluicegate[otel]`.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any, Final
from urllib.parse import urlsplit

from opentelemetry.propagators.textmap import Getter
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import Span, SpanKind, StatusCode, TracerProvider, get_current_span, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from gateway import Attempt, Body, Caller, Exchange, Operation, Outcome, Trace

NS: Final = 1_000_000_000
RANDOM: Final = 0x02
"""The flag of a trace whose id is random (W3C Trace Context, level 2), which goes on with the trace."""
MOST_CONTENT: Final = 32 << 20
"""Characters of content that wait in one worker, at most. Spans beyond them are sent without."""

Values = dict[str, str | int | float | bool]


class _Headers(Getter[Mapping[str, str]]):
    """Reads the headers of a request. Of several `traceparent` none counts; several `tracestate` are one list."""

    def get(self, carrier: Any, key: str) -> list[str] | None:
        found = carrier.getall(key, None)
        return None if found is None or (key == "traceparent" and len(found) > 1) else list(found)

    def keys(self, carrier: Mapping[str, str]) -> list[str]:
        return list(carrier)


class Tracing(Trace):
    """The spans of a request in progress: the SERVER span, and a CLIENT span for each upstream that was called."""

    def __init__(self, spans: Spans, exchange: Exchange, server: Span, flags: int) -> None:
        self._spans = spans
        self.exchange = exchange
        self._flags = flags
        self.server = server
        self.clients: dict[int, Span] = {}
        self.recorded = server.is_recording()

    def headers(self) -> Mapping[str, str]:
        """Begin the span of the upstream that is called now, and return what makes its own spans children of it.

        Of a trace that is sent nowhere, one span stands for all.
        """
        span = self.server
        if self.recorded:
            number = len(self.exchange.attempts) - 1
            span = self.clients[number] = self._spans.begin_client(self, self.exchange.attempts[number])
        context = span.get_span_context()
        flags = context.trace_flags | self._flags
        headers = {"traceparent": f"00-{context.trace_id:032x}-{context.span_id:016x}-{flags:02x}"}
        if context.trace_state:
            headers["tracestate"] = context.trace_state.to_header()
        return headers


class SpanQueue(SpanExporter):
    """An exporter, and the sizes of what waits for it: of `spans` at most, of which OpenTelemetry drops the oldest."""

    def __init__(self, exporter: SpanExporter, spans: int) -> None:
        self._exporter = exporter
        self._spans = spans
        self._sizes: deque[int] = deque()
        self._total = 0
        self._lock = threading.Lock()

    def has_room(self, size: int) -> bool:
        """Return whether content of this size may wait."""
        return self._total + size <= MOST_CONTENT

    def add(self, size: int) -> None:
        """Note that a span has ended, with content of this size."""
        with self._lock:
            self._sizes.append(size)
            self._total += size
            if len(self._sizes) > self._spans:
                self._total -= self._sizes.popleft()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send spans. They wait until they are sent."""
        try:
            return self._exporter.export(spans)
        finally:
            with self._lock:
                for _ in range(min(len(spans), len(self._sizes))):
                    self._total -= self._sizes.popleft()

    def shutdown(self) -> None:
        """Send nothing more."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Do nothing: what waits is not here."""
        return True


class Spans:
    """Makes spans. `queue`: where they wait. `channels`: their addresses.

    `providers`: the provider's name of channels where it is not `openai`.
    """

    def __init__(
        self,
        exported: TracerProvider,
        queue: SpanQueue,
        channels: Mapping[str, str],
        providers: Mapping[str, str],
        *,
        continues: bool,
    ) -> None:
        self._queue = queue
        self._tracer = exported.get_tracer("sluicegate", version("sluicegate"))
        self._servers = {name: _server(url) for name, url in channels.items()}
        self._providers = providers
        self._context = TraceContextTextMapPropagator() if continues else None

    def begin(self, exchange: Exchange) -> Tracing:
        """Begin the span of a request."""
        parent = self._context.extract(exchange.request.headers, getter=_headers) if self._context else None
        flags = 0 if parent is None else get_current_span(parent).get_span_context().trace_flags & RANDOM
        route = _route(exchange)
        name = f"{exchange.request.method} {route}".strip()
        server = self._tracer.start_span(name, parent, SpanKind.SERVER, start_time=_ns(exchange, exchange.started))
        return Tracing(self, exchange, server, flags)

    def begin_client(self, tracing: Tracing, attempt: Attempt) -> Span:
        """Begin the span of the call of an upstream."""
        return self._tracer.start_span(
            f"{operation_name(tracing.exchange.request.operation)} {attempt.model}",
            set_span_in_context(tracing.server),
            SpanKind.CLIENT,
            start_time=_ns(tracing.exchange, attempt.began),
        )

    def end(self, tracing: Tracing, body: Body | None, content: Values) -> None:
        """End the spans of a request that has ended, and is traced.

        `body`: the body of a request with attempts. `content`: attributes of the last CLIENT span, or without one of the SERVER
        span. They are left out where too much content waits for the collector.
        """
        exchange, server = tracing.exchange, tracing.server
        ended = exchange.ended or exchange.started
        size = sum(len(value) for value in content.values() if isinstance(value, str))
        if not self._queue.has_room(size):
            content, size = {"sluicegate.content.dropped": True}, 0
        if body is not None:
            for number, attempt in enumerate(exchange.attempts):
                last = attempt is exchange.attempts[-1]
                client = tracing.clients.get(number) or self.begin_client(tracing, attempt)
                client.set_attributes(self._of_attempt(exchange, attempt, body, last=last) | (content if last else {}))
                error = attempt.error or (_error(exchange) if last else "")
                _end(client, error, _ns(exchange, ended if last else attempt.failed or ended))
                self._queue.add(size if last else 0)
        server.set_attributes(_of_request(exchange) | ({} if exchange.attempts else content))
        failed = exchange.status >= 500 or exchange.outcome is Outcome.INTERNAL_ERROR
        _end(server, _error(exchange) if failed else "", _ns(exchange, ended))
        self._queue.add(0 if exchange.attempts else size)

    def _of_attempt(self, exchange: Exchange, attempt: Attempt, body: Body, *, last: bool) -> Values:
        usage, known = attempt.usage, attempt.usage.source != "none"
        address, port = self._servers.get(attempt.channel, (None, None))
        first_s = None if exchange.first_byte is None else exchange.first_byte - attempt.began
        values: dict[str, str | int | float | bool | None] = {
            "gen_ai.operation.name": operation_name(exchange.request.operation),
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


def operation_name(operation: Operation) -> str:
    """Return the name of an operation as the semantic conventions have it, of others the gateway's own."""
    wire = operation.wire
    if operation is Operation.COMPLETIONS:
        return "text_completion"
    return "chat" if wire is None or wire.generates else str(operation)


_headers: Final = _Headers()


def _route(exchange: Exchange) -> str:
    request = exchange.request
    route = "" if request.operation is Operation.MISDIRECTED else request.path
    return f"{route.removesuffix(request.argument)}{{id}}" if request.argument and route else route


def _of_request(exchange: Exchange) -> Values:
    request, caller = exchange.request, exchange.get(Caller)
    values: Values = {
        "http.request.method": request.method,
        "http.route": _route(exchange),
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
        "sluicegate.answered_by": exchange.answered_by,
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
