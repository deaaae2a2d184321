"""Input tokens of a body, estimated and bounded, and the bounds of the body itself, checked before it is parsed. Sans-I/O.

**The estimate** is for upstreams that report no usage and for limits on tokens.

- Every field may become a part of the prompt: messages, tools, a schema of the answer. Four bytes count as one token. A
  character that is written as an escape of six characters counts as the three bytes that it stands for.
- Encoded parts (inline pictures, sounds, films and PDF files) count as text, but at most as `ENCODED_TOKENS` each. A string is
  such a part only in the place where an upstream has to decode it, so that no text can pass for a picture.

**The most tokens that the prompt can count** are for holds (`bound_prompt`).

- **Text counts a token for each byte**: of the messages as they are decoded, and of all else as it is written, since no tokenizer
  makes more tokens than there are bytes.
- **JSON that a chat template writes again** (tools, schemas, calls of tools and their results) may be longer there than it was:
  with other escapes, with spaces, with all digits of a number. Its bytes count, and the bytes that this can add.
- **An encoded part** (a picture, a sound, a film, a PDF file) counts what the model's settings state as the most for one, whether
  it is in the body or named by an address. Its bytes do not count where only a decoder can read them, as `encoded_string` tells.
- **A part of a type that is not known** counts its bytes and a picture; a file that may be text counts its bytes and a file.

**The bounds of a body** are checked before it is parsed, since to parse it blocks the event loop. The checks are generators, with
a pause after each window of a large body, so that other work can be done in between.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from itertools import accumulate
from typing import Final

import msgspec

from gateway.base.errors import Refused
from gateway.chat.fields import COMMON
from gateway.chat.usage import BYTES_PER_TOKEN

ENCODED_TOKENS: Final = 1105
"""What OpenAI counts for a picture of 2048 x 4096 pixels in high detail (its guide on vision, "Calculating costs")."""
ENCODED_BYTES: Final = ENCODED_TOKENS * BYTES_PER_TOKEN
WINDOW_BYTES: Final = 1024

SETTINGS_BYTES: Final = 256
"""Bytes outside of the messages that do not count: the names of fields, and settings such as `model` and `temperature`."""

DATA_URL: Final = re.compile(rb'"data:(?:(?:image|audio|video)\\?/[\w.+-]+|application\\?/pdf)(?:;[\w.=+-]+)*;base64,')
ABSENT: Final = msgspec.Raw()

_PLACES: Final = {
    "image_url": "url",
    "video_url": "url",
    "audio_url": "url",
    "input_audio": "data",
    "file": "file_data",
}
"""Types of content parts: the member that holds the encoded bytes."""

MESSAGE_ALLOWANCE: Final = 16
"""Tokens that a chat template may add to one message."""
REQUEST_ALLOWANCE: Final = 128
"""Tokens that a chat template may add to a conversation, such as a date or a system prompt."""
TOOLS_ALLOWANCE: Final = 640
"""Tokens of the instructions that go with tools: 530 are the most in Anthropic's table (its guide on tool use, "Pricing")."""

IMAGE_TOKENS: Final = 4800
"""Anthropic's newer models count up to 4,784 for a picture (its guide on vision). By OpenAI's guide ("Calculating costs") GPT-4o
counts 85, and 170 for each of at most 8 tiles, and models that count patches at most 1,536 x 2.46 = 3,779."""
AUDIO_TOKENS: Final = 20_000
"""Ten minutes of Gemini's 32 tokens a second (its guide on audio). Others count fewer."""
FILE_TOKENS: Final = 128_000
"""The context window of GPT-4o, which refuses a longer prompt. Anthropic counts up to 3,000 for the text of a page of a PDF file,
and its picture."""

MAX_PARTS: Final = 2000
"""Pictures, sounds, films and files in one body: more than any provider takes, of which OpenAI takes the most, 1,500 pictures. It
bounds what the most expensive request can cost."""

REWRITTEN_TIMES: Final = 7
"""A byte of JSON counts fewer tokens than this, whatever a template makes of it."""

_PLAIN_ROLES: Final = frozenset({"system", "developer", "user", "assistant"})
"""Of messages whose content stands in the prompt as it is. Templates write the results of tools as JSON."""
_SETTINGS: Final = COMMON - {"tools", "tool_choice", "functions", "function_call", "response_format"}
"""Fields with nothing that a template writes as JSON. The messages are looked at one by one."""
_TEXT_TYPES: Final = frozenset({"text", "input_text", "output_text", "refusal", "thinking"})

_IMAGE, _SOUND, _FILE = range(3)
_KINDS: Final = {
    "image_url": _IMAGE,
    "audio_url": _SOUND,
    "input_audio": _SOUND,
    "video_url": _FILE,
    "file": _FILE,
}
_KNOWN_TYPES: Final = _TEXT_TYPES | _KINDS.keys()
_MEDIA: Final = {b'"data:a': _SOUND, b'"data:v': _FILE, b'"data:ap': _FILE}
"""The kinds of data URLs that are no pictures, by their first letters."""

_SIX_BYTES: Final = b"<>&'\x7f"
"""Written as `\\u003c` by encoders that protect HTML, such as the encoders of Go and minijinja."""
_TWO_MORE: Final = bytes(range(128, 256)) + b",:[]{}"
"""A character outside of ASCII may become an escape, up to three times as long. Next to punctuation there may be spaces or a line
end with an indentation, which tokenizers take as two tokens."""
_NUMBER: Final = re.compile(rb"[\[,:]\s*-?[0-9]+[.eE]")
_NUMBER_MORE: Final = 17
"""`1e15` becomes `1000000000000000.0`, `1e20` 21 digits, `0.1` 0.10000000000000001."""
_OVERLAP: Final = 64
_QUOTE, _BRACE = b'"{'
_SOME_PARTS: Final = 256

_raw_parts: Final = msgspec.json.Decoder(list[msgspec.Raw])

Tokens = Generator[None, None, int]

MAX_STRINGS: Final = 50_000
MAX_BRACKETS: Final = 100_000
"""These limits bound the time that parsing takes, to about 50 ms."""
WINDOW: Final = 64 * 1024
PIECE: Final = 16 * 1024
"""Bytes of JSON that `rewritten` reads without a pause, about a millisecond where they are numbers."""

_BRACKETS_TO_STEPS: Final = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_NOT_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))

Windows = Generator[None, None, None]


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


_encoded_part_list = msgspec.json.Decoder(list[Part])
_encoded = msgspec.json.Decoder(_Encoded)


def estimate_tokens(raw: bytes | bytearray, messages: msgspec.Raw, read: Sequence[Message]) -> int:
    """Return the estimate for a body. `messages` is that field as it was received, `read` what was read of it."""
    escaped = raw.find(b"\\u") >= 0
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
    decoded = _opens(value, b'"') and (member == "data" or DATA_URL.match(value))
    return bytes(value) if decoded else b""


def _excess(text: bytes | bytearray) -> int:
    """Return by how many bytes the escapes of characters are longer than these, at most.

    A `u` after two backslashes is not counted: the first may escape the second.
    """
    return 3 * (text.count(b"\\u") - text.count(b"\\\\u"))


def _encoded_parts(content: msgspec.Raw) -> list[bytes]:
    """Return the long strings that an upstream has to decode, with their quotes."""
    try:
        strings = map(encoded_string, _encoded_part_list.decode(content))
        return [string for string in strings if len(string) > ENCODED_BYTES]
    except msgspec.DecodeError:
        return []


def _opens(value: msgspec.Raw, bracket: bytes) -> bool:
    return bytes(memoryview(value)[:1]) == bracket


_part: Final = msgspec.json.Decoder(Part)


class PartTokens(msgspec.Struct, frozen=True):
    """The most tokens that one picture, one sound and one file or film may count.

    `added`: the most tokens of the fields that a channel adds to a body.
    """

    image: int = IMAGE_TOKENS
    audio: int = AUDIO_TOKENS
    file: int = FILE_TOKENS
    added: int = 0


DEFAULTS: Final = PartTokens()


class PromptBound(msgspec.Struct, frozen=True):
    """The most tokens of the text of a prompt, and the number of encoded parts."""

    text: int
    images: int = 0
    sounds: int = 0
    files: int = 0

    def tokens(self, parts: PartTokens) -> int:
        """Return the most tokens of the prompt."""
        encoded = self.images * parts.image + self.sounds * parts.audio + self.files * parts.file
        return self.text + encoded + parts.added


def bound_prompt(
    raw: bytes | bytearray, top: dict[str, msgspec.Raw], messages: Sequence[Message]
) -> Generator[None, None, PromptBound]:
    """Return the bound of a body, with a pause after each window of what is long.

    Raises `Refused` for too many parts, and for a sound that is kept elsewhere.
    """
    text = len(raw) + len(messages) * MESSAGE_ALLOWANCE + REQUEST_ALLOWANCE
    if not _SETTINGS.issuperset(top):
        for name in top.keys() - _SETTINGS:
            text += yield from rewritten(top[name])
        if "tools" in top or "functions" in top:
            text += TOOLS_ALLOWANCE
    escaped = raw.find(b"\\") >= 0
    parts: _Parts | None = None
    for message in messages:
        content = message.content
        if message.role not in _PLAIN_ROLES:
            text += yield from rewritten(content)
        elif escaped and content is not ABSENT and memoryview(content)[0] == _QUOTE:
            text -= yield from _escapes(content)
        if content is not ABSENT and memoryview(content)[0] != _QUOTE:
            parts = parts or _Parts()
            text += yield from parts.add(content)
        if message.tool_calls is not ABSENT:
            text += yield from rewritten(message.tool_calls)
        if message.function_call is not ABSENT:
            text += yield from rewritten(message.function_call)
        if message.audio is not ABSENT and _is_given(message.audio):
            said = (
                "'messages' names a sound that an upstream keeps of an earlier answer. Send what it says as 'content'."
            )
            raise Refused(400, "not_served", said, param="messages")
    if parts is None:
        return PromptBound(text)
    return PromptBound(text - sum(map(len, parts.encoded)), *parts.counts)


class _Parts:
    """The encoded parts of all messages: how many of each kind, and the strings that only a decoder can read."""

    def __init__(self) -> None:
        self.counts = [0, 0, 0]
        self.encoded: list[bytes] = []

    def add(self, content: msgspec.Raw, *, nested: bool = False) -> Tokens:
        """Count the parts of a message's content, and those inside of them, of which all bytes count as text.

        So do those of a list with something else among its parts: it is not known how an upstream reads it. Return how many tokens
        the text of the parts counts beyond its bytes, less than 0 for escapes. Raises `Refused`.
        """
        first = memoryview(content)[0]
        if first not in b"[{":
            return 0
        odd, found, strings = first == _BRACE, list[tuple[Part, msgspec.Raw]](), list[bytes]()
        for number, item in enumerate(_raw_parts.decode(b"[%b]" % bytes(content) if odd else content), 1):
            try:
                part = _part.decode(item)
            except msgspec.DecodeError:
                self.counts[_IMAGE] += memoryview(item)[0] == _BRACE
                odd = True
                continue
            found.append((part, item))
            if string := self._count(part):
                strings.append(string)
            if part.content is not ABSENT:
                yield from self.add(part.content, nested=True)
            if number % _SOME_PARTS == 0:
                yield
        if sum(self.counts) > MAX_PARTS:
            text = f"The body has more than {MAX_PARTS} pictures, sounds and files. Send fewer."
            raise Refused(400, "invalid_request", text)
        if nested:
            return 0
        if odd:
            return (yield from rewritten(content))
        self.encoded += strings
        more = 0
        for part, item in found:
            more += yield from _beyond_bytes(part, item)
        return more

    def _count(self, part: Part) -> bytes:
        """Count a part. Return the string in it that only a decoder can read, if there is one."""
        named = [member for member in _KINDS if part.type == member or _is_given(getattr(part, member))]
        for member in named:
            self.counts[_KINDS[member]] += 1
        if not named and part.type and part.type not in _TEXT_TYPES:
            self.counts[_IMAGE] += 1
        string = encoded_string(part)
        if string:
            kind = _MEDIA.get(string[:8], _MEDIA.get(string[:7], _IMAGE))
            if kind != _IMAGE and kind != _KINDS[part.type]:
                self.counts[kind] += 1
        return string


def _beyond_bytes(part: Part, item: msgspec.Raw) -> Tokens:
    """Return the tokens of a part's text beyond its bytes. A part of an unknown type may be written into the prompt as JSON."""
    is_string = part.text is not ABSENT and memoryview(part.text)[0] == _QUOTE
    if part.type not in _KNOWN_TYPES or part.content is not ABSENT or not (is_string or part.text is ABSENT):
        return (yield from rewritten(item))
    return -(yield from _escapes(part.text)) if is_string else 0


def _is_given(value: msgspec.Raw) -> bool:
    return value is not ABSENT and bytes(memoryview(value)[:4]) != b"null"


def rewritten(value: msgspec.Raw) -> Tokens:
    """Return how many tokens JSON can count beyond its bytes where a template writes it again."""
    view, more = memoryview(value), 0
    for at in range(0, len(view), PIECE):
        text = bytes(view[max(0, at - _OVERLAP) : at + PIECE])  # what is cut in two counts in one of them
        size = len(text)
        more += 5 * (size - len(text.translate(None, _SIX_BYTES)))
        more += 2 * (size - len(text.translate(None, _TWO_MORE)))
        more += 4 * (text.count(rb"\b") + text.count(rb"\f"))  # encoders that have no short form write \u0008
        more += _NUMBER_MORE * len(_NUMBER.findall(text))
        if size > WINDOW_BYTES:  # also after the last piece: there may be many such values
            yield
    return more


def _escapes(value: msgspec.Raw) -> Tokens:
    """Return how many bytes the escapes in a string have at least beyond the characters that they stand for.

    Each has one byte more, `\\u0041` at least three. One that may be text behind an escaped backslash counts as none.
    """
    view, more = memoryview(value), 0
    for at in range(0, len(view), WINDOW):
        text = bytes(view[at : at + WINDOW])
        if backslashes := text.count(b"\\"):
            more += backslashes - text.count(rb"\\") + 2 * (text.count(rb"\u") - text.count(rb"\\u"))
            more -= 3 if at else 0  # an escape may be cut in two
        if at + WINDOW < len(view):
            yield
    return more


def check_bounds(raw: bytes | bytearray, max_depth: int) -> Windows:
    """Raise `Refused` for a body with too many strings, arrays or objects, or one that is nested too deeply.

    The depth and the number of arrays are those of valid JSON. Of other input, they may be anything.
    """
    if len(raw) > 2 * MAX_STRINGS:
        yield from _check_strings(raw)
    opened = 0
    for at in range(0, len(raw), WINDOW):
        opened += raw.count(b"[", at, at + WINDOW) + raw.count(b"{", at, at + WINDOW)
        if opened > max_depth:
            yield from _check_brackets(raw, max_depth)
            return
        if at + WINDOW < len(raw):
            yield


def check_encoding(raw: bytes | bytearray) -> Windows:
    """Raise `UnicodeDecodeError` for what is not UTF-8. Its `start` counts from the beginning of the whole."""
    at = 0
    while at < len(raw):
        end = at + WINDOW
        while end < len(raw) and raw[end] & 0xC0 == 0x80 and end > at + WINDOW - 4:  # within a character
            end -= 1
        try:
            raw[at:end].decode()
        except UnicodeDecodeError as error:
            error.start += at
            raise
        at = end
        if at < len(raw):
            yield


def too_deep(max_depth: int) -> Refused:
    """Return the error for a body that is nested too deeply."""
    return Refused(400, "invalid_request", f"The body is nested deeper than {max_depth} levels. Send it flatter.")


def _check_strings(raw: bytes | bytearray) -> Windows:
    """Count the quotes that open or close strings: escaped ones do not count."""
    quotes = 0
    for at in range(0, len(raw), WINDOW):
        quotes += raw.count(b'"', at, at + WINDOW) - raw.count(rb"\"", max(0, at - 1), at + WINDOW)
        if quotes > 2 * MAX_STRINGS:
            raise _too_many("strings", MAX_STRINGS)
        yield


def _check_brackets(raw: bytes | bytearray, max_depth: int) -> Windows:
    """Follow the depth: outside strings, each bracket is one level up or down."""
    at = depth = brackets = in_string = 0
    while at < len(raw):
        window = raw[at : at + WINDOW]
        if window[-1:] == b"\\" and (len(window) - len(window.rstrip(b"\\"))) % 2:
            window = raw[at : at + WINDOW + 1]  # an escape is not split
        at += len(window)
        if b"\\" in window:
            window = window.replace(rb"\\", b"").replace(rb"\"", b"")
        pieces = window.split(b'"')
        steps = b"".join(pieces[in_string::2]).translate(_BRACKETS_TO_STEPS, _NOT_BRACKETS)
        in_string ^= (len(pieces) - 1) % 2
        brackets += len(steps)
        if brackets > 2 * MAX_BRACKETS:
            raise _too_many("arrays and objects", MAX_BRACKETS)
        levels = list(accumulate(memoryview(steps).cast("b"), initial=depth))
        depth = levels[-1]
        if max(levels) > max_depth:
            raise too_deep(max_depth)
        if at < len(raw):
            yield


def _too_many(what: str, limit: int) -> Refused:
    return Refused(400, "invalid_request", f"The body holds more than {limit} {what}. Send fewer, larger ones.")
