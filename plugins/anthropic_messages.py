"""The messages of a chat completion, as those of Anthropic's Messages.

System and developer messages, wherever they are, become the `system` of the request. Messages in a row of one side become one: the
results of several tools must be in the message after the calls. Empty texts, which Anthropic refuses, are left out, and so are
fields of messages that are not known, such as those that other upstreams add to their answers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from gateway import ChatRequest, Refused

DATA_URL: Final = re.compile(r"data:([\w.+-]+/[\w.+-]+)(?:;[\w.+-]+=[^;,]*)*;base64,", re.IGNORECASE)
ADDRESS: Final = re.compile(r"https?://", re.IGNORECASE)
PDF: Final = "application/pdf"
NOT_IN_IDS: Final = re.compile(r"[^a-zA-Z0-9_-]")
"""What Anthropic refuses in the name of a call. Those that other upstreams made up may have it."""
ROLES: Final = {"user": "user", "tool": "user", "assistant": "assistant"}

Block = dict[str, Any]
Message = dict[str, Any]


class _Call(msgspec.Struct):
    name: str
    arguments: str = ""


class _ToolCall(msgspec.Struct):
    id: str
    function: _Call | None = None


class _Address(msgspec.Struct):
    url: str


class _File(msgspec.Struct):
    file_data: str = ""
    filename: str = ""


class _Part(msgspec.Struct):
    type: str
    text: str = ""
    refusal: str = ""
    image_url: _Address | str | None = None
    file: _File | None = None
    cache_control: dict[str, msgspec.Raw] | None = None


class _Thinking(msgspec.Struct):
    type: str
    thinking: str = ""
    signature: str = ""
    data: str = ""


class _Message(msgspec.Struct):
    role: str
    content: str | list[_Part] | None = None
    refusal: str | None = None
    tool_calls: list[_ToolCall] | None = None
    tool_call_id: str = ""
    thinking_blocks: list[_Thinking] | None = None
    function_call: dict[str, msgspec.Raw] | None = None
    name: str | None = None
    audio: dict[str, msgspec.Raw] | None = None


_decode: Final = msgspec.json.Decoder(_Message).decode
_encode: Final = msgspec.json.Encoder().encode


def messages_of(chat: ChatRequest) -> tuple[list[Block], list[Message]]:
    """Return the blocks of the system prompt, and the messages. Raises `Refused` for what Messages cannot say.

    Each message is read and written by itself: to do so with all of them at once would keep other threads waiting for longer.
    """
    system: list[Block] = []
    messages: list[Message] = []
    for number, raw in enumerate(chat.get("messages", list[msgspec.Raw]) or []):
        message = _read(raw, number)
        _check(message)
        if message.role in ("system", "developer"):
            system += _texts(message)
            continue
        role, blocks = ROLES[message.role], [msgspec.Raw(_encode(block)) for block in _blocks(message)]
        if messages and messages[-1]["role"] == role:
            messages[-1]["content"] += blocks
        elif blocks:
            messages.append({"role": role, "content": blocks})
    if not messages:
        raise _unsupported("a request without a message of a user that says something")
    return system, messages


def _read(raw: msgspec.Raw, number: int) -> _Message:
    try:
        return _decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        text = f"'messages' cannot be sent to the upstream of this model: {error} (of message {number})."
        raise Refused(400, "invalid_request", text, param="messages") from None


def _check(message: _Message) -> None:
    if message.role not in ROLES and message.role not in ("system", "developer"):
        raise _unsupported(f"a message with the role '{message.role[:32]}'")
    if message.function_call is not None:
        raise _unsupported("a message with 'function_call'")
    if message.audio is not None:
        raise _unsupported("a message with 'audio'")
    if message.name is not None and message.role != "tool":
        raise _unsupported("a message with a 'name'")


def _blocks(message: _Message) -> Iterator[Block]:
    if message.role == "tool":
        if not message.tool_call_id:
            raise _unsupported("the result of a tool without its 'tool_call_id'")
        result = {"type": "tool_result", "tool_use_id": _id(message.tool_call_id)}
        contents = list(_contents(message))
        yield {**result, "content": contents} if contents else result
        return
    for thought in message.thinking_blocks or ():
        if thought.type == "redacted_thinking":
            yield {"type": thought.type, "data": thought.data}
        elif thought.signature:  # without one it is refused
            yield {"type": "thinking", "thinking": thought.thinking, "signature": thought.signature}
    yield from _texts(message) if message.role == "assistant" else _contents(message)
    for call in message.tool_calls or ():
        if call.function is None:
            raise _unsupported("a call of a tool that is no function")
        yield {"type": "tool_use", "id": _id(call.id), "name": call.function.name, "input": _input(call.function)}


def _texts(message: _Message) -> Iterator[Block]:
    for block in _contents(message):
        if block["type"] != "text":
            raise _unsupported(f"a message with the role '{message.role}' that is not text alone")
        yield block


def _contents(message: _Message) -> Iterator[Block]:
    """Yield what a message has. What is cached lives five minutes, whatever the caller wrote: longer has another price."""
    parts = [_Part("text", message.content)] if isinstance(message.content, str) else message.content or []
    for part in [*parts, _Part("text", message.refusal or "")]:
        block = _block(part)
        if block is not None:
            yield {**block, "cache_control": {"type": "ephemeral"}} if part.cache_control else block


def _block(part: _Part) -> Block | None:
    """Return a part of a message; None for an empty text."""
    if part.type in ("text", "refusal"):
        text = part.text or part.refusal
        return {"type": "text", "text": text} if text.strip() else None
    source: Block | None = None
    if part.type == "image_url" and part.image_url is not None:
        url = part.image_url if isinstance(part.image_url, str) else part.image_url.url
        source = {"type": "url", "url": url} if ADDRESS.match(url) else _inline(url)
        if source is None or source.get("media_type", "image/").partition("/")[0] != "image":
            raise _unsupported("a picture that is neither a data URL of an image in base64 nor at an address with http")
        return {"type": "image", "source": source}
    if part.type == "file" and part.file is not None:
        source = _inline(part.file.file_data)
        if source is None or source["media_type"] != PDF:
            raise _unsupported("a file that is no data URL of a PDF in base64")
        title = {"title": part.file.filename} if part.file.filename else {}
        return {"type": "document", "source": source, **title}
    raise _unsupported(f"a part of the type '{part.type[:32]}'")


def _inline(url: str) -> Block | None:
    """Return the source of what a data URL has; None for another address."""
    match = DATA_URL.match(url)
    return {"type": "base64", "media_type": match[1].lower(), "data": url[match.end() :]} if match else None


def _id(name: str) -> str:
    return NOT_IN_IDS.sub("_", name)


def _input(call: _Call) -> dict[str, msgspec.Raw]:
    """Return the arguments of a call, which a chat completion has as a text in JSON."""
    try:
        return msgspec.json.decode(call.arguments or "{}", type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, RecursionError):
        raise _unsupported("a call of a tool whose arguments are no JSON object") from None


def _unsupported(what: str) -> Refused:
    text = f"The upstream of this model cannot be sent {what}: change it, or choose another model."
    return Refused(400, "invalid_request", text, param="messages")
