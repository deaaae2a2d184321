"""Traces for OpenTelemetry: a SERVER span for each request, and below it a CLIENT span for each call of an upstream.

All spans are made when the request has ended, so that nothing is done for an event. A thread of OpenTelemetry's sends them in
batches over OTLP: where the collector does not keep up, spans are dropped, and no request waits.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import version
from typing import Final

import msgspec

from gateway import Exchange, Plugin, Services

EXPORT_S: Final = 2.0
"""How long the export of one batch may take."""
EVERY_MS: Final = 1000
BATCH: Final = 512
STOP_S: Final = 2.5
"""How long the last spans may take: less than a stop of all plugins together."""


class Otel(Plugin):
    """Sends traces to a collector of OpenTelemetry, without any content. Put it at the top. Needs `sluicegate[otel]`.

    The CLIENT spans have the attributes `gen_ai.*` of OpenTelemetry's semantic conventions, the SERVER spans those of HTTP.
    """

    API = 1

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
        if not 0 <= self.ratio <= 1:
            raise ValueError("ratio must be from 0 to 1")
        if self.queue < 1:
            raise ValueError("queue must be 1 or more")

    async def start(self, services: Services) -> None:
        """Begin to export."""
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio

            from plugins.spans import Spans
        except ImportError as error:
            raise ValueError(f"`{error.name}` is not installed: pip install 'sluicegate[otel]'") from None
        names = {"service.name": self.service, "service.version": version("sluicegate")}
        sampler = ParentBasedTraceIdRatio(self.ratio)
        self._exported = TracerProvider(sampler, Resource.create(names), shutdown_on_exit=False)
        exporter = OTLPSpanExporter(self.endpoint, headers=dict(self.headers), timeout=EXPORT_S)
        batches = BatchSpanProcessor(exporter, self.queue, EVERY_MS, min(BATCH, self.queue))
        self._exported.add_span_processor(batches)
        channels = {name: channel.base_url for name, channel in services.catalogue.channels.items()}
        self._spans = Spans(self._exported, channels, self.providers, continues=self.continues)

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

    async def explain(self, exchange: Exchange) -> str:
        """Return what it does. This plugin refuses no request."""
        return "traces the request"

    async def on_end(self, exchange: Exchange) -> None:
        """Make the spans of a request."""
        body = await exchange.body() if exchange.attempts else None
        self._spans.add(exchange, body)

    def __repr__(self) -> str:
        return f"<Otel {self.endpoint}>"
