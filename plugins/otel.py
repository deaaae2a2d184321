"""Traces for OpenTelemetry: a SERVER span for each request, and below it a CLIENT span for each call of an upstream.

- `otel` sends traces, and does nothing for an event. A thread of OpenTelemetry's sends the spans in batches over OTLP: where the
  collector does not keep up, spans are dropped, and no request waits. Upstreams are told the CLIENT span as their parent, in
  `traceparent` and `tracestate`.
- `otel-content` adds prompts and answers, each as JSON in the shapes of the schemas of OpenTelemetry's semantic conventions for
  generative AI. It is a plugin of its own, so that a gateway without it reads no event.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib.metadata import version
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from gateway import Caller, Exchange, Operation, Plugin, Services, Trace, matches
from plugins.content_log import Content, Said, said

EXPORT_S: Final = 2.0
"""How long the export of one batch may take."""
NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
VALUE: Final = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")
EVERY_MS: Final = 1000
BATCH: Final = 512
STOP_S: Final = 2.5
"""How long the last spans may take: less than a stop of all plugins together."""
SUFFIX: Final = ";base64,"
MODALITIES: Final = {"image_url": "image", "input_audio": "audio", "file": "document", "video_url": "video"}
FINISH_REASONS: Final = {"tool_calls": "tool_call", "function_call": "tool_call"}


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
            content = exchange.get(SpanContent)
            attributes = {} if content is None else content.attributes()
            self._spans.end(exchange[Trace], body, attributes)  # type: ignore[arg-type] # what `on_request` has put there

    def _open(self, channels: Mapping[str, str]) -> None:
        """Begin to export. It reads files: what is installed, and certificates."""
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio

            from plugins.spans import SpanQueue, Spans
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
                messages if len(messages) <= self.max_bytes else b"",
                tools=tools if len(tools) <= self.max_bytes else b"",
            )

    async def explain(self, exchange: Exchange) -> str:
        """Return what it does. This plugin refuses no request."""
        return "adds the content to the trace, if it is sent"

    def on_response(self, exchange: Exchange) -> None:
        """Take an answer that is not streamed."""
        if (content := exchange.get(SpanContent)) is not None and exchange.answer is not None:
            content.take_whole(msgspec.json.encode(exchange.answer), self.max_bytes)

    def on_chunk(self, exchange: Exchange, chunk: bytes) -> None:
        """Take the answer, as far as it is kept."""
        if (content := exchange.get(SpanContent)) is not None:
            content.take(chunk, self.max_bytes)


class SpanContent(Content):
    """A fact: the content of a request whose trace is sent."""

    tools: bytes = b""

    def attributes(self) -> dict[str, Any]:
        """Return the attributes of the span."""
        found: dict[str, Any] = {}
        answers = said(self.events, self.whole)
        if messages := _decoded(self.messages):
            found["gen_ai.input.messages"] = _json([_message(each) for each in messages if isinstance(each, dict)])
        if answers:
            found["gen_ai.output.messages"] = _json([_answer(each) for each in answers])
            if reasons := [each.finish_reason for each in answers if each.finish_reason]:
                found["gen_ai.response.finish_reasons"] = reasons
        if tools := [_tool(each) for each in _decoded(self.tools) if isinstance(each, dict)]:
            found["gen_ai.tool.definitions"] = _json(tools)
        return found


def _decoded(raw: bytes) -> list[Any]:
    try:
        value = msgspec.json.decode(raw) if raw else []
    except (msgspec.DecodeError, RecursionError):
        return []
    return value if isinstance(value, list) else []


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _message(message: dict[str, Any]) -> dict[str, Any]:
    role = str(message.get("role", ""))
    if role in ("tool", "function"):
        part: dict[str, Any] = {"type": "tool_call_response", "response": message.get("content")}
        if identity := message.get("tool_call_id"):
            part["id"] = identity
        return {"role": role, "parts": [part]}
    parts = [*_parts(message.get("content")), *_calls(message)]
    if reasoning := message.get("reasoning_content") or message.get("reasoning"):
        parts.insert(0, {"type": "reasoning", "content": reasoning})
    if refusal := message.get("refusal"):
        parts.append({"type": "refusal", "content": refusal})
    name = {"name": message["name"]} if isinstance(message.get("name"), str) else {}
    return {"role": role, "parts": parts, **name}


def _parts(content: Any) -> Iterator[dict[str, Any]]:
    if isinstance(content, str):
        yield {"type": "text", "content": content}
    for part in content if isinstance(content, list) else ():
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "text":
            yield {"type": "text", "content": part.get("text", "")}
        elif kind in MODALITIES and isinstance(part.get(kind), dict):
            yield _media(MODALITIES[kind], part[kind])
        elif isinstance(part, dict):
            yield {**part, "type": str(kind)}


def _media(modality: str, media: dict[str, Any]) -> dict[str, Any]:
    """Return a part that is a picture, a sound or a file: its bytes, its address or its id."""
    if identity := media.get("file_id"):
        return {"type": "file", "modality": modality, "file_id": identity}
    where = str(media.get("url") or media.get("file_data") or "")
    kind, separator, data = where.partition(SUFFIX)
    if where and not separator:
        return {"type": "uri", "modality": modality, "uri": where}
    mime = kind.removeprefix("data:") if separator else f"audio/{media.get('format', '')}"
    return {"type": "blob", "modality": modality, "mime_type": mime, "content": data or str(media.get("data", ""))}


def _calls(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        function = (call.get("function") or call.get("custom")) if isinstance(call, dict) else None
        if isinstance(function, dict):
            arguments = function.get("arguments", function.get("input"))
            yield _call(call.get("id"), function.get("name"), arguments)
    if isinstance(function := message.get("function_call"), dict):
        yield _call(None, function.get("name"), function.get("arguments"))


def _call(identity: Any, name: Any, arguments: Any) -> dict[str, Any]:
    call = {"type": "tool_call", "name": str(name or ""), "arguments": _object(arguments)}
    return {**call, "id": identity} if identity else call


def _object(arguments: Any) -> Any:
    """Return arguments that are JSON as what they say."""
    try:
        return msgspec.json.decode(arguments) if isinstance(arguments, str) else arguments
    except (msgspec.DecodeError, RecursionError):
        return arguments


def _answer(answer: Said) -> dict[str, Any]:
    parts: list[dict[str, Any]] = []
    if answer.reasoning:
        parts.append({"type": "reasoning", "content": answer.reasoning})
    if answer.content:
        parts.append({"type": "text", "content": answer.content})
    if answer.refusal:
        parts.append({"type": "refusal", "content": answer.refusal})
    parts += [_call(call["id"], call["name"], call["arguments"]) for call in answer.calls.values()]
    reason = FINISH_REASONS.get(answer.finish_reason, answer.finish_reason) or "error"
    return {"role": "assistant", "parts": parts, "finish_reason": reason}


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    kind = str(tool.get("type", "function"))
    function = tool.get(kind)
    return {
        "type": kind,
        "name": str(function.get("name", "") if isinstance(function, dict) else tool.get("name", kind)),
    }
