"""An estimate of the input tokens of a body, for upstreams that report no usage and for limits on tokens. Sans-I/O.

- Every field may become a part of the prompt: messages, tools, a schema of the answer. Four bytes count as one token. A
  character that is written as an escape of six characters counts as the three bytes that it stands for.
- Encoded parts (inline pictures, sounds, films and PDF files) count as text, but at most as `ENCODED_TOKENS` each. A string is
  such a part only in the place where an upstream has to decode it, so that no text can pass for a picture.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from gateway.chat.usage import BYTES_PER_TOKEN

ENCODED_TOKENS: Final = 1105
"""What OpenAI counts for a picture of 2048 x 4096 pixels in high detail (its guide on vision, "Calculating costs")."""
ENCODED_BYTES: Final = ENCODED_TOKENS * BYTES_PER_TOKEN
WINDOWS: Final = 16
WINDOW_BYTES: Final = 1024

SETTINGS_BYTES: Final = 256
"""Bytes outside of the messages that do not count: the names of fields, and settings such as `model` and `temperature`."""

_DATA_URL: Final = re.compile(rb'"data:(?:(?:image|audio|video)\\?/[\w.+-]+|application\\?/pdf)(?:;[\w.=+-]+)*;base64,')
ABSENT: Final = msgspec.Raw()


class Message(msgspec.Struct):
    """A message, as far as it is read. `audio` names an earlier answer."""

    role: str
    content: msgspec.Raw = ABSENT
    tool_calls: msgspec.Raw = ABSENT
    function_call: msgspec.Raw = ABSENT
    audio: msgspec.Raw = ABSENT


class Part(msgspec.Struct):
    """A part of a message's content, as far as it is read."""

    type: str = ""
    text: msgspec.Raw = ABSENT
    image_url: msgspec.Raw = ABSENT
    video_url: msgspec.Raw = ABSENT
    audio_url: msgspec.Raw = ABSENT
    input_audio: msgspec.Raw = ABSENT
    file: msgspec.Raw = ABSENT
    content: msgspec.Raw = ABSENT


class _Encoded(msgspec.Struct):
    url: msgspec.Raw = ABSENT
    data: msgspec.Raw = ABSENT
    file_data: msgspec.Raw = ABSENT


_PLACES: Final = {
    "image_url": "url",
    "video_url": "url",
    "audio_url": "url",
    "input_audio": "data",
    "file": "file_data",
}
"""Types of content parts: the member that holds the encoded bytes."""

_parts = msgspec.json.Decoder(list[Part])
_encoded = msgspec.json.Decoder(_Encoded)


def estimate_tokens(raw: bytes | bytearray, messages: msgspec.Raw, read: Sequence[Message]) -> int:
    """Return the estimate for a body. `messages` is that field as it was received, `read` what was read of it."""
    escaped = _has_escapes(raw)
    text = max(len(memoryview(messages)), len(raw) - SETTINGS_BYTES) - (_excess(raw) if escaped else 0)
    encoded = 0
    for message in read if len(raw) > ENCODED_BYTES else ():
        if len(memoryview(message.content)) > ENCODED_BYTES and _opens(message.content, b"["):
            for part in _encoded_parts(message.content):
                text -= len(part) - (_excess(part) if escaped else 0)
                encoded += 1
    return encoded * ENCODED_TOKENS + -(-max(text, 0) // BYTES_PER_TOKEN)


def encoded_string(part: Part) -> bytes:
    """Return the string of a content part that an upstream has to decode, with its quotes; empty where it has none.

    A picture's URL may also stand without an object around it.
    """
    member = _PLACES.get(part.type)
    if member is None:
        return b""
    value: msgspec.Raw = getattr(part, part.type)
    if _opens(value, b"{"):
        value = getattr(_encoded.decode(value), member)
    decoded = _opens(value, b'"') and (member == "data" or _DATA_URL.match(value))
    return bytes(value) if decoded else b""


def _has_escapes(text: bytes | bytearray) -> bool:
    """Return whether one of some windows has an escape. Most bodies have none, and a search of the whole takes long."""
    if len(text) <= WINDOW_BYTES:
        return text.find(b"\\u") >= 0
    step = max(WINDOW_BYTES, len(text) // WINDOWS)
    return any(text.find(b"\\u", start, start + WINDOW_BYTES) >= 0 for start in range(0, len(text), step))


def _excess(text: bytes | bytearray) -> int:
    """Return by how many bytes the escapes of characters are longer than these, at most.

    A `u` after two backslashes is not counted: the first may escape the second.
    """
    return 3 * (text.count(b"\\u") - text.count(b"\\\\u"))


def _encoded_parts(content: msgspec.Raw) -> list[bytes]:
    """Return the long strings that an upstream has to decode, with their quotes."""
    try:
        strings = map(encoded_string, _parts.decode(content))
        return [string for string in strings if len(string) > ENCODED_BYTES]
    except msgspec.DecodeError:
        return []


def _opens(value: msgspec.Raw, bracket: bytes) -> bool:
    return bytes(memoryview(value)[:1]) == bracket
