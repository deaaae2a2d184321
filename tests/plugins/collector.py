"""A receiver of OTLP over HTTP, which decodes the spans that it is sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.patience import PATIENCE_S


class Received(msgspec.Struct):
    """A span as it was received. Times are nanoseconds since 1970, ids are hexadecimal; `error`: whether its status is one."""

    name: str
    kind: int
    trace: str
    id: str
    parent: str
    began: int
    ended: int
    error: bool
    attributes: dict[str, Any]
    resource: dict[str, Any]


class Collector:
    """What a collector has received."""

    def __init__(self) -> None:
        self.spans: list[Received] = []
        self.headers: list[dict[str, str]] = []
        self.url = ""
        self._changed = asyncio.Event()

    async def wait(self, count: int) -> list[Received]:
        """Return the spans once there are so many, the earliest first."""
        async with asyncio.timeout(PATIENCE_S):
            while len(self.spans) < count:
                self._changed.clear()
                await self._changed.wait()
        return sorted(self.spans, key=lambda span: (span.began, span.kind))

    async def receive(self, request: web.Request) -> web.Response:
        """Answer an export."""
        export = ExportTraceServiceRequest.FromString(await request.read())
        self.headers.append(dict(request.headers))
        for resource in export.resource_spans:
            for scope in resource.scope_spans:
                self.spans += [received(span, values(resource.resource.attributes)) for span in scope.spans]
        self._changed.set()
        return web.Response(content_type="application/x-protobuf")


def values(attributes: Any) -> dict[str, Any]:
    """Return attributes by their names."""
    return {each.key: value(each.value) for each in attributes}


def value(sent: Any) -> Any:
    """Return one value, or those of a list."""
    kind = sent.WhichOneof("value")
    return [value(each) for each in sent.array_value.values] if kind == "array_value" else getattr(sent, kind)


def received(span: Any, resource: dict[str, Any]) -> Received:
    ids = span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex()
    times = span.start_time_unix_nano, span.end_time_unix_nano
    return Received(span.name, span.kind, *ids, *times, span.status.code == 2, values(span.attributes), resource)


@asynccontextmanager
async def collecting() -> AsyncIterator[Collector]:
    """Yield a collector that listens on loopback."""
    collector = Collector()
    app = web.Application()
    app.router.add_post("/v1/traces", collector.receive)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    collector.url = f"http://127.0.0.1:{port}/v1/traces"
    try:
        yield collector
    finally:
        await runner.cleanup()
