"""A chat completion request, written as a request of Anthropic's Messages.

- No field changes its meaning on the way. A field that Messages has no equivalent of is refused by its name, so that a channel of
  another kind may serve the request. Left out are only fields that have no bearing on the answer, and values that ask for the
  default (`LEFT_OUT`).
- System and developer messages, wherever they are, become the `system` of the request.
- Messages in a row of one side become one: the results of several tools must be in the message after the calls.
- Empty texts, which Anthropic refuses, are left out, and so are unknown fields of messages, such as other upstreams add to their
  answers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from gateway import ChatRequest, Refused

PASSED_ON: Final = ("top_k", "thinking", "output_config")
"""Fields that only Anthropic has."""
TRANSLATED: Final = frozenset(
    (
        *(
            "messages",
            "temperature",
            "top_p",
            "stop",
            "user",
            "safety_identifier",
            "reasoning_effort",
            "response_format",
        ),
        *("tools", "tool_choice", "parallel_tool_calls", *PASSED_ON),
    )
)
LEFT_OUT: Final[Mapping[str, tuple[Any, ...] | None]] = {
    **dict.fromkeys(("metadata", "store", "prediction", "seed")),
    **dict.fromkeys(("prompt_cache_key", "prompt_cache_retention", "prompt_cache_options")),
    **dict.fromkeys(("frequency_penalty", "presence_penalty", "top_logprobs"), (0,)),
    "logprobs": (False,),
    "logit_bias": ({},),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "verbosity": ("medium",),
    "service_tier": ("auto", "default", "standard_only"),
    "speed": ("standard",),
}
"""Fields that are not sent: with any value, or with these, which ask for nothing. `seed` asks for no more than an effort."""
EFFORTS: Final = ("low", "medium", "high", "xhigh", "max")
MOST_TEMPERATURE: Final = 1
DATA_URL: Final = re.compile(r"data:([\w.+-]+/[\w.+-]+)(?:;[\w.+-]+=[^;,]*)*;base64,", re.IGNORECASE)
ADDRESS: Final = re.compile(r"https?://", re.IGNORECASE)
PDF: Final = "application/pdf"
NOT_IN_IDS: Final = re.compile(r"[^a-zA-Z0-9_-]")
"""What Anthropic refuses in the name of a call. Those that other upstreams made up may have it."""
ROLES: Final = {"user": "user", "tool": "user", "assistant": "assistant"}

Block = dict[str, Any]
Message = dict[str, Any]
NO_PARAMETERS: Final = {"type": "object", "properties": {}}
KINDS: Final = {None: "auto", "auto": "auto", "none": "none", "required": "any"}


class _Schema(msgspec.Struct):
    schema: dict[str, msgspec.Raw]


class _Format(msgspec.Struct):
    type: str
    json_schema: _Schema | None = None


def message_request(chat: ChatRequest) -> bytes:
    """Return the body of a request. Raises `Refused` for what Messages cannot do."""
    _check_fields(chat)
    system, messages = messages_of(chat)
    body: dict[str, Any] = {"model": chat.model, "max_tokens": chat.max_tokens, "messages": messages, "stream": True}
    if system:
        body["system"] = system
    _add_settings(body, chat)
    add_tools(body, chat)
    _add_output(body, chat)
    return msgspec.json.encode(body)


def _check_fields(chat: ChatRequest) -> None:
    for name in chat.fields:
        if name in TRANSLATED:
            continue
        asks_nothing = LEFT_OUT.get(name, ())
        if asks_nothing is not None and (value := chat.get(name)) is not None and value not in asks_nothing:
            raise _unsupported(name)


def _add_settings(body: dict[str, Any], chat: ChatRequest) -> None:
    if (temperature := chat.get("temperature", float)) is not None:
        if temperature > MOST_TEMPERATURE:
            raise _unsupported("temperature", f"is at most {MOST_TEMPERATURE} for the upstream of this model")
        body["temperature"] = temperature
    if (top_p := chat.get("top_p", float)) is not None:
        body["top_p"] = top_p
    stop = chat.get("stop", str | list[str])
    sequences = [stop] if isinstance(stop, str) and stop else stop or []
    if not all(map(str.strip, sequences)):
        raise _unsupported("stop", "must have more than blanks for the upstream of this model")
    if sequences:
        body["stop_sequences"] = sequences
    if user := (chat.get("safety_identifier", str) or chat.get("user", str)):
        body["metadata"] = {"user_id": user}
    body |= {name: chat.fields[name] for name in PASSED_ON if chat.get(name) is not None}


def _add_output(body: dict[str, Any], chat: ChatRequest) -> None:
    """Add the effort and the form of the answer, which Anthropic has in one field."""
    config = chat.get("output_config", dict[str, msgspec.Raw]) or {}
    effort, wanted = chat.get("reasoning_effort", str), chat.get("response_format", _Format)
    if effort == "none" and chat.get("thinking") is None:
        body["thinking"] = {"type": "disabled"}
    elif effort is not None:
        if effort not in EFFORTS or "effort" in config:
            raise _unsupported("reasoning_effort")
        config["effort"] = msgspec.Raw(msgspec.json.encode(effort))
    if wanted is not None and wanted.type != "text":
        if wanted.type != "json_schema" or wanted.json_schema is None or "format" in config:
            raise _unsupported("response_format")
        format_ = {"type": "json_schema", "schema": wanted.json_schema.schema}
        config["format"] = msgspec.Raw(msgspec.json.encode(format_))
    if config:
        body["output_config"] = config


def _unsupported(param: str, reason: str = "asks for something that the upstream of this model cannot do") -> Refused:
    shown = ascii(param[:64])[1:-1]
    text = f"'{shown}' {reason}: change it, leave it out, or choose another model."
    return Refused(400, "invalid_request", text, param=shown)


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


_decode_message: Final = msgspec.json.Decoder(_Message).decode
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
        raise _unsupported_message("a request without a message of a user that says something")
    return system, messages


def _read(raw: msgspec.Raw, number: int) -> _Message:
    try:
        return _decode_message(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        text = f"'messages' cannot be sent to the upstream of this model: {error} (of message {number})."
        raise Refused(400, "invalid_request", text, param="messages") from None


def _check(message: _Message) -> None:
    if message.role not in ROLES and message.role not in ("system", "developer"):
        raise _unsupported_message(f"a message with the role '{message.role[:32]}'")
    if message.function_call is not None:
        raise _unsupported_message("a message with 'function_call'")
    if message.name is not None and message.role != "tool":
        raise _unsupported_message("a message with a 'name'")


def _blocks(message: _Message) -> Iterator[Block]:
    if message.role == "tool":
        if not message.tool_call_id:
            raise _unsupported_message("the result of a tool without its 'tool_call_id'")
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
            raise _unsupported_message("a call of a tool that is no function")
        yield {"type": "tool_use", "id": _id(call.id), "name": call.function.name, "input": _input(call.function)}


def _texts(message: _Message) -> Iterator[Block]:
    for block in _contents(message):
        if block["type"] != "text":
            raise _unsupported_message(f"a message with the role '{message.role}' that is not text alone")
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
            raise _unsupported_message(
                "a picture that is neither a data URL of an image in base64 nor at an address with http"
            )
        return {"type": "image", "source": source}
    if part.type == "file" and part.file is not None:
        source = _inline(part.file.file_data)
        if source is None or source["media_type"] != PDF:
            raise _unsupported_message("a file that is no data URL of a PDF in base64")
        title = {"title": part.file.filename} if part.file.filename else {}
        return {"type": "document", "source": source, **title}
    raise _unsupported_message(f"a part of the type '{part.type[:32]}'")


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
        raise _unsupported_message("a call of a tool whose arguments are no JSON object") from None


def _unsupported_message(what: str) -> Refused:
    text = f"The upstream of this model cannot be sent {what}: change it, or choose another model."
    return Refused(400, "invalid_request", text, param="messages")


class _Function(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    description: str | None = None
    parameters: dict[str, msgspec.Raw] | None = None
    strict: bool | None = None


class _Tool(msgspec.Struct):
    type: str = "function"
    function: _Function | None = None
    cache_control: dict[str, msgspec.Raw] | None = None


class _Named(msgspec.Struct):
    name: str


class _Choice(msgspec.Struct):
    type: str
    function: _Named | None = None


def add_tools(body: dict[str, Any], chat: ChatRequest) -> None:
    """Add the tools to the body of a request. Raises `Refused` for those that are no functions, and for other choices."""
    tools = chat.get("tools", list[_Tool])
    choice = chat.get("tool_choice", str | _Choice)
    parallel = chat.get("parallel_tool_calls", bool)
    if isinstance(choice, _Choice):
        if choice.type != "function" or choice.function is None or not tools:
            raise _unsupported("tool_choice")
        chosen: dict[str, Any] = {"type": "tool", "name": choice.function.name}
    else:
        kind = KINDS.get(choice)
        if kind is None or (kind == "any" and not tools):
            raise _unsupported("tool_choice")
        chosen = {"type": kind}
    if not tools:
        return
    body["tools"] = [_tool(tool) for tool in tools]
    if parallel is False and chosen["type"] != "none":
        chosen["disable_parallel_tool_use"] = True
    if choice is not None or len(chosen) > 1:
        body["tool_choice"] = chosen


def _tool(tool: _Tool) -> dict[str, Any]:
    if tool.type != "function" or tool.function is None:
        raise _unsupported("tools")
    function = tool.function
    said: dict[str, Any] = {"name": function.name, "input_schema": function.parameters or NO_PARAMETERS}
    if function.description:
        said["description"] = function.description
    if function.strict:
        said["strict"] = True
    if tool.cache_control:
        said["cache_control"] = {"type": "ephemeral"}
    return said
