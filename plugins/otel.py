"""Traces for OpenTelemetry: a SERVER span for each request, and below it a CLIENT span for each call of an upstream.

Nothing is done for an event. A thread of OpenTelemetry's sends the spans in batches over OTLP: where the collector does not keep
up, spans are dropped, and no request waits. Upstreams are told the CLIENT span as their parent, in `traceparent` and `tracestate`.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import version
from typing import Final
from urllib.parse import urlsplit

import msgspec

from gateway import Exchange, Plugin, Services, Trace

EXPORT_S: Final = 2.0
"""How long the export of one batch may take."""
NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
VALUE: Final = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")
EVERY_MS: Final = 1000
BATCH: Final = 512
STOP_S: Final = 2.5
"""How long the last spans may take: less than a stop of all plugins together."""


class Otel(Plugin):
    """Sends traces to a collector of OpenTelemetry. Put it at the top. Needs `sluicegate[otel]`.

    They have no content, unless `otel-content` stands below it.
    The CLIENT spans have the attributes `gen_ai.*` of OpenTelemetry's semantic conventions, the SERVER spans those of HTTP.
    """

    API = 1
    provides = (Trace,)

    endpoint: str = "http://127.0.0.1:4318/v1/traces"
    """The address of the collector, with the path."""
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Headers of each export, such as an API key of the collector's."""
    service: str = "sluicegate"
    """The name of the service in the traces."""
    ratio: float = 1.0
    """Which part of the traces that begin here is sent, from 0 to 1."""
    continues: bool = True
    """Whether a trace that a caller names in `traceparent` goes on here. Turn it off where callers are strangers."""
    providers: Mapping[str, str] = msgspec.field(default_factory=dict)
    """`gen_ai.provider.name` of channels, by their names. For all others it is `openai`, whose protocol they speak."""
    queue: int = 8192
    """Spans that wait to be sent, at most."""

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.endpoint)
            if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:
                raise ValueError(self.endpoint)
        except ValueError:
            raise ValueError("endpoint must be like http://127.0.0.1:4318/v1/traces") from None
        for name, value in self.headers.items():
            if not NAME.fullmatch(name) or not VALUE.fullmatch(value):
                raise ValueError(f"headers: {name!r} is no name of a header, or its value is not visible ASCII")
        if not self.service.strip():
            raise ValueError("service must not be empty")
        if not 0 <= self.ratio <= 1:
            raise ValueError("ratio must be from 0 to 1")
        if self.queue < 1:
            raise ValueError("queue must be 1 or more")

    async def start(self, services: Services) -> None:
        """Begin to export. Raises `ValueError` for a provider of a channel that does not exist."""
        channels = {name: channel.base_url for name, channel in services.catalogue.channels.items()}
        if unknown := sorted(self.providers.keys() - channels.keys()):
            raise ValueError(f"providers: there is no channel `{unknown[0]}`")
        await asyncio.to_thread(self._open, channels)

    async def stop(self) -> None:
        """Send what is left. A collector that does not answer is not waited for: the thread does not outlive the process."""
        loop, ended = asyncio.get_running_loop(), asyncio.Event()

        def shut_down() -> None:
            self._exported.shutdown()
            with suppress(RuntimeError):  # the process may not have waited
                loop.call_soon_threadsafe(ended.set)

        ending = threading.Thread(target=shut_down, daemon=True)
        ending.start()
        with suppress(TimeoutError):
            await asyncio.wait_for(ended.wait(), STOP_S)
            ending.join()

    async def on_request(self, exchange: Exchange) -> None:
        """Begin the span of a request, or go on with the caller's trace."""
        exchange[Trace] = self._spans.begin(exchange)

    async def explain(self, exchange: Exchange) -> str:
        """Return what it does. This plugin refuses no request."""
        exchange[Trace] = Trace()
        return "traces the request"

    async def on_end(self, exchange: Exchange) -> None:
        """End the spans of a request, with all that is known of it."""
        if exchange[Trace].recorded:
            body = await exchange.body() if exchange.attempts else None
            self._spans.end(exchange[Trace], body)  # type: ignore[arg-type] # what `on_request` has put there

    def _open(self, channels: Mapping[str, str]) -> None:
        """Begin to export. It reads files: what is installed, and certificates."""
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio

            from plugins.span_queue import SpanQueue
            from plugins.spans import Spans
        except ImportError as error:
            raise ValueError(f"`{error.name}` is not installed: pip install 'sluicegate[otel]'") from None
        names = {"service.name": self.service, "service.version": version("sluicegate")}
        sampler = ParentBasedTraceIdRatio(self.ratio)
        self._exported = TracerProvider(sampler, Resource.create(names), shutdown_on_exit=False)
        exporter = OTLPSpanExporter(self.endpoint, headers=dict(self.headers), timeout=EXPORT_S)
        queue = SpanQueue(exporter, self.queue)
        batches = BatchSpanProcessor(queue, self.queue, EVERY_MS, min(BATCH, self.queue))
        self._exported.add_span_processor(batches)
        self._spans = Spans(self._exported, queue, channels, self.providers, continues=self.continues)

    def __repr__(self) -> str:
        return f"<Otel {self.endpoint}>"
