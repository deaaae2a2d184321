"""The other operations of the fake upstream.

Every mode answers messages, responses and completions, too: each chunk of a chat completion becomes events of these.
"""

from __future__ import annotations

import email
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec
from aiohttp import web
from aiohttp_sse import EventSourceResponse, sse_response

from gateway.fake_upstream.completion import DONE, ChatBody, ChatMessage, Completion, error, refusal
from gateway.fake_upstream.modes import REFUSALS

STOP_REASONS: Final = {"stop": "end_turn", "length": "max_tokens"}
DIMENSIONS: Final = 8
PICTURE: Final = "iVBORw0KGgo="
BYTES_A_SECOND: Final = 16_000
MOST_KEPT: Final = 1_000
"""Responses that are kept."""


class NamedEvents(EventSourceResponse):
    """An event stream whose events have their types as names."""

    async def send(self, data: str, *args: Any, **options: Any) -> None:
        """Send one event."""
        await super().send(data, event=msgspec.json.decode(data)["type"])


class TypedCompletion(Completion):
    """One answer in typed events."""

    events = NamedEvents

    async def send(self, stream: EventSourceResponse, events: Iterable[str]) -> None:
        """Send typed events in place of chunks, at the pace."""
        for chunk in events:
            for event in self._events(chunk):
                await super().send(stream, [event])

    @abstractmethod
    def _events(self, chunk: str) -> Iterator[str]:
        """Yield the events in place of a chunk."""


class MessageCompletion(TypedCompletion):
    """One message."""

    def whole(self) -> dict[str, object]:
        """Return the message as one JSON object."""
        content = [{"type": "text", "text": " ".join(self.words)}]
        return self._message(content) | {"stop_reason": STOP_REASONS[self.finish_reason], "usage": self._usage()}

    def _events(self, chunk: str) -> Iterator[str]:
        if chunk == DONE:
            yield _event("message_stop")
            return
        fields = msgspec.json.decode(chunk)
        if told := fields.get("error"):
            yield _event("error", error={"type": "api_error", "message": told["message"]})
        for choice in fields.get("choices", ()):
            yield from self._of_choice(choice["delta"], choice["finish_reason"])

    def _of_choice(self, delta: dict[str, str], finish_reason: str | None) -> Iterator[str]:
        if "role" in delta:
            usage = self._usage() | {"output_tokens": 1}
            yield _event("message_start", message=self._message([]) | {"stop_reason": None, "usage": usage})
            yield _event("content_block_start", index=0, content_block={"type": "text", "text": ""})
        if thought := delta.get("reasoning_content"):
            yield _event("content_block_delta", index=0, delta={"type": "thinking_delta", "thinking": thought})
        if text := delta.get("content"):
            yield _event("content_block_delta", index=0, delta={"type": "text_delta", "text": text})
        if finish_reason is not None:
            yield _event("content_block_stop", index=0)
            stop = {"stop_reason": STOP_REASONS[finish_reason], "stop_sequence": None}
            yield _event("message_delta", delta=stop, usage={"output_tokens": self._usage()["output_tokens"]})

    def _usage(self) -> dict[str, int]:
        usage = self.usage()
        return {"input_tokens": usage["prompt_tokens"], "output_tokens": usage["completion_tokens"]}

    def _message(self, content: list[Any]) -> dict[str, object]:
        message = {"id": self._id, "type": "message", "role": "assistant", "model": self.chat.model}
        return message | {"content": content, "stop_sequence": None}


class GivenItem(ChatMessage):
    """An item of the input: a message, or anything else."""

    role: str = ""
    type: str = ""
    id: str = ""
    encrypted_content: str | None = None

    @property
    def refers(self) -> bool:
        """Whether it names an item that is kept."""
        return self.type == "item_reference" or bool(
            self.id and self.type in ("", "reasoning") and not (self.encrypted_content or self.content)
        )


class ResponseBody(ChatBody):
    """The body of a response: only the fields that the answer depends on. `before`: the tokens of what it names."""

    messages: list[Any] = msgspec.field(default_factory=list)
    input: str | list[GivenItem] = ""
    max_output_tokens: int | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    before: int = 0

    def __post_init__(self) -> None:
        self.messages = [ChatMessage("user", self.input)] if isinstance(self.input, str) else self.input
        self.max_tokens = self.max_output_tokens


class ResponseCompletion(TypedCompletion):
    """One response."""

    chat: ResponseBody

    def __init__(self, request: web.Request, chat: ResponseBody, *, pace_s: float, words: str | None) -> None:
        super().__init__(request, chat, pace_s=pace_s, words=words)
        self.item_id = f"msg_{self._id.removeprefix('chatcmpl-')}"
        self._id = f"resp_{self._id.removeprefix('chatcmpl-')}"

    def whole(self) -> dict[str, object]:
        """Return the response as one JSON object."""
        return self._response("completed", self._usage())

    def _events(self, chunk: str) -> Iterator[str]:
        if chunk == DONE:
            return
        fields = msgspec.json.decode(chunk)
        if told := fields.get("error"):
            yield _event("error", code="server_error", message=told["message"], param=None)
        for choice in fields.get("choices", ()):
            delta = choice["delta"]
            if "role" in delta:
                yield _event("response.created", response=self._response("in_progress", None))
                item: dict[str, Any] = {"id": self.item_id, "type": "message", "role": "assistant"}
                item |= {"status": "in_progress", "content": []}
                yield _event("response.output_item.added", output_index=0, item=item)
                part = {"type": "output_text", "text": "", "annotations": []}
                place = {"item_id": self.item_id, "output_index": 0, "content_index": 0}
                yield _event("response.content_part.added", **place, part=part)
            if thought := delta.get("reasoning_content"):
                yield _event("response.reasoning_summary_text.delta", delta=thought)
            if text := delta.get("content"):
                place = {"item_id": self.item_id, "output_index": 0, "content_index": 0}
                yield _event("response.output_text.delta", **place, delta=text)
            if choice["finish_reason"] is not None:
                status = "completed" if choice["finish_reason"] == "stop" else "incomplete"
                whole = self._response(status, self._usage())
                yield _event("response.output_item.done", output_index=0, item=whole["output"][0])
                yield _event(f"response.{status}", response=whole)

    def _usage(self) -> dict[str, int]:
        usage = self.usage()
        told = {"input_tokens": usage["prompt_tokens"] + self.chat.before, "output_tokens": usage["completion_tokens"]}
        return {**told, "total_tokens": usage["total_tokens"] + self.chat.before}

    def _response(self, status: str, usage: dict[str, int] | None) -> dict[str, Any]:
        part = {"type": "output_text", "text": " ".join(self.words), "annotations": []}
        item = {"id": self.item_id, "type": "message", "role": "assistant", "status": status, "content": [part]}
        output = [] if usage is None else [item]
        made = {"id": self._id, "object": "response", "created_at": self._created, "status": status}
        return {**made, "model": self.chat.model, "output": output, "usage": usage}


class KeptResponses:
    """The latest responses, which may be named by their ids and those of their items."""

    def __init__(self) -> None:
        self._responses: dict[str, dict[str, Any]] = {}
        self._inputs: dict[str, object] = {}
        self._items: dict[str, int] = {}

    def look_up(self, body: ResponseBody) -> None:
        """Add the tokens of what a body names. Raises `KeyError` with the first id that is not kept."""
        if body.previous_response_id is not None:
            body.before += self._responses[body.previous_response_id]["usage"]["total_tokens"]
        if not isinstance(body.input, str):
            body.before += sum(self._items[item.id] for item in body.input if item.refers)

    def keep(self, made: ResponseCompletion) -> None:
        """Keep a response, unless it is not to be stored."""
        if made.chat.store is not False:
            whole = made.whole()
            name = str(whole["id"])
            self._responses[name], self._inputs[name] = whole, made.chat.input
            self._items[made.item_id] = len(made.words)
            for kept in (self._responses, self._inputs, self._items):
                if len(kept) > MOST_KEPT:
                    del kept[next(iter(kept))]

    async def answer(self, request: web.Request) -> web.Response:
        """Answer a request about one of them."""
        name = request.match_info["name"]
        if name not in self._responses:
            return _not_found(f"Response with id '{name}' not found.")
        if request.path.endswith("/cancel"):
            return refusal(400, error("invalid_request", "Cannot cancel a synchronous response."))
        if request.path.endswith("/input_items"):
            items = {"object": "list", "data": self._inputs[name], "has_more": False}
            return web.Response(body=msgspec.json.encode(items), content_type="application/json")
        if request.method == "DELETE":
            del self._responses[name]
            return web.json_response({"id": name, "object": "response", "deleted": True})
        return web.json_response(self._responses[name])


def not_kept(name: str) -> web.Response:
    """Return the refusal of a body that names what is not kept."""
    return _not_found(f"Item with id '{name}' not found.")


def _not_found(text: str) -> web.Response:
    return refusal(404, error("not_found", text))


class PromptBody(ChatBody):
    """The body of a completion: only the fields that the answer depends on."""

    messages: list[ChatMessage] = msgspec.field(default_factory=list)
    prompt: str | list[Any] = ""

    def __post_init__(self) -> None:
        self.messages = [ChatMessage("user", self.prompt if isinstance(self.prompt, str) else str(self.prompt))]


class TextCompletion(Completion):
    """One completion of a text."""

    def whole(self) -> dict[str, object]:
        """Return the completion as one JSON object."""
        choice = {"index": 0, "text": " ".join(self.words), "finish_reason": self.finish_reason}
        return self._head("text_completion") | {"choices": [choice], "usage": self.usage()}

    def _chunk(self, choices: list[dict[str, Any]], **fields: object) -> str:
        texts = [{**each, "text": each.pop("delta").get("content", "")} for each in choices]
        return msgspec.json.encode(self._head("text_completion") | {"choices": texts} | fields).decode()


class GivenTexts(msgspec.Struct):
    """The body of a request that reads texts."""

    model: str
    input: str | list[Any] = ""
    documents: list[Any] = []

    @property
    def texts(self) -> list[Any]:
        """All of them."""
        given = self.input if isinstance(self.input, list) else [self.input]
        return self.documents or given


def read_texts(body: GivenTexts, path: str, mode: str) -> web.Response:
    """Return the answer of an operation that reads texts. A mode that refuses does so here, too."""
    if mode.isdecimal():
        return refusal(int(mode), error(*REFUSALS[int(mode)]))
    numbers = range(len(body.texts))
    if path.endswith("/moderations"):
        results = [{"flagged": False, "categories": {}, "category_scores": {}} for _ in numbers]
        return web.json_response({"id": "modr-1", "model": body.model, "results": results})
    tokens = sum(len(each.split()) if isinstance(each, str) else 1 for each in body.texts)
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    if path.endswith("/rerank"):
        ranked = [{"index": number, "relevance_score": 1 / (number + 1)} for number in numbers]
        return web.json_response({"model": body.model, "results": ranked, "usage": usage})
    data = [{"object": "embedding", "index": number, "embedding": [0.125] * DIMENSIONS} for number in numbers]
    return web.json_response({"object": "list", "data": data, "model": body.model, "usage": usage})


class Ordered(msgspec.Struct):
    """What is ordered of pictures or of sound."""

    model: str = ""
    n: int = 1
    input: str = ""
    response_format: str = ""
    stream: bool = False
    stream_format: str = ""


async def make(request: web.Request, mode: str) -> web.StreamResponse:
    """Answer with pictures, with a sound, or with what is written down of one: a second for each 16,000 bytes."""
    if mode.isdecimal():
        return refusal(int(mode), error(*REFUSALS[int(mode)]))
    body, size = await request.read(), 0
    if request.content_type == "application/json":
        ordered = msgspec.json.decode(body, type=Ordered)
    else:
        fields: dict[str, str] = {}
        for each in email.message_from_bytes(
            f"Content-Type: {request.headers['Content-Type']}\r\n\r\n".encode() + body
        ).walk():
            data, name = each.get_payload(decode=True), each.get_param("name", header="content-disposition")
            if isinstance(data, bytes) and each.get_filename() is not None:
                size += len(data)
            elif isinstance(data, bytes):
                fields[str(name)] = data.decode()
        ordered = msgspec.convert(fields, Ordered, strict=False)
    usage = {"type": "duration", "seconds": -(-size // BYTES_A_SECOND)}
    if ordered.stream or ordered.stream_format == "sse":
        async with sse_response(request, response_cls=NamedEvents, allow_all_methods=True) as stream:
            for event in _made(request.path, ordered, usage):
                await stream.send(event)
        return stream
    if "/images/" in request.path:
        return web.json_response({"created": 1, "data": [{"b64_json": PICTURE} for _ in range(ordered.n)]})
    if request.path.endswith("/speech"):
        return web.Response(body=b"ID3" + ordered.input.encode(), content_type="audio/mpeg")
    if ordered.response_format in ("text", "srt", "vtt"):
        return web.Response(text="Hello there.", content_type="text/plain")
    return web.json_response({"text": "Hello there.", "usage": usage})


def _made(path: str, ordered: Ordered, usage: dict[str, object]) -> Iterator[str]:
    """Yield the events of an answer."""
    if "/images/" in path:
        kind = "image_edit" if path.endswith("/edits") else "image_generation"
        for _ in range(ordered.n):
            yield _event(f"{kind}.partial_image", b64_json=PICTURE, partial_image_index=0)
            yield _event(f"{kind}.completed", b64_json=PICTURE, usage={"total_tokens": 9})
    elif path.endswith("/speech"):
        yield _event("speech.audio.delta", audio=PICTURE)
        yield _event("speech.audio.done", usage={"total_tokens": 9})
    else:
        yield _event("transcript.text.delta", delta="Hello there.")
        yield _event("transcript.text.done", text="Hello there.", usage=usage)


def counted(chat: ChatBody, kind: str) -> web.Response:
    """Return the tokens of a prompt."""
    tokens = sum(len(message.words()) for message in chat.messages)
    return web.json_response({"object": kind, "input_tokens": tokens})


def _event(kind: str, **fields: object) -> str:
    return msgspec.json.encode({"type": kind, **fields}).decode()
