"""Adds what was asked and answered to the traces of `otel`. A plugin of its own, so that a gateway without it reads no event."""

from __future__ import annotations

import msgspec

from gateway import Caller, Exchange, Operation, Plugin, Trace, matches
from plugins.span_content import SpanContent


class OtelContent(Plugin):
    """Adds prompts and answers to the traces of `otel`, which show them to everybody who sees these. Put it below `auth`.

    The CLIENT span of the last upstream that was called gets `gen_ai.input.messages`, `gen_ai.output.messages` and
    `gen_ai.tool.definitions`, as OpenTelemetry's semantic conventions write them; the SERVER span, where a plugin answered.
    """

    API = 1
    requires = (Caller, Trace)

    groups: tuple[str, ...] = ("*",)
    """Groups whose requests are traced with content, as names or patterns with `*`."""
    max_bytes: int = 65_536
    """Bytes above which a prompt is left out, and an answer that is not streamed; of a stream, after which the rest is."""

    def __post_init__(self) -> None:
        if self.max_bytes < 1:
            raise ValueError("max_bytes must be 1 or more")

    async def on_request(self, exchange: Exchange) -> None:
        """Take the prompt of a request whose trace is sent."""
        chosen = exchange[Trace].recorded and matches(self.groups, exchange[Caller].group)
        if exchange.request.operation is Operation.CHAT and chosen:
            top = (await exchange.body()).top
            messages, tools = bytes(top["messages"]), bytes(top.get("tools", b""))
            exchange[SpanContent] = SpanContent(
                messages if len(messages) <= self.max_bytes else b"", tools if len(tools) <= self.max_bytes else b""
            )

    async def explain(self, exchange: Exchange) -> str:
        """Return what it does. This plugin refuses no request."""
        return "adds the content to the trace, if it is sent"

    def on_response(self, exchange: Exchange) -> None:
        """Take an answer that is not streamed."""
        content = exchange.get(SpanContent)
        if content is not None and exchange.answer is not None:
            whole = msgspec.json.encode(exchange.answer)
            content.whole = whole if len(whole) <= self.max_bytes else b""

    def on_chunk(self, exchange: Exchange, chunk: bytes) -> None:
        """Take the answer, as far as it is kept."""
        content = exchange.get(SpanContent)
        if content is not None and content.size < self.max_bytes:
            content.events.append(chunk)
            content.size += len(chunk)
