"""The most tokens that the prompt of a body can count, for holds. Sans-I/O.

- **Text counts a token for each byte**: of the messages as they are decoded, and of all else as it is written, since no tokenizer
  makes more tokens than there are bytes.
- **JSON that a chat template writes again** (tools, schemas, calls of tools and their results) may be longer there than it was:
  with other escapes, with spaces, with all digits of a number. Its bytes count, and what that can add.
- **An encoded part** (a picture, a sound, a film, a PDF file) counts what the model's settings state as the most for one, whether
  it is in the body or named by an address. Its bytes do not count where only a decoder can read them, as `encoded_string` tells.
- **A part of a type that is not known** counts its bytes and a picture; a file that may be text counts its bytes and a file.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from typing import Final

import msgspec

from gateway.chat.bounds import WINDOW
from gateway.chat.fields import COMMON
from gateway.chat.prompt import ABSENT, Message, Part, encoded_string
from gateway.errors import Refused

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
"""What a data URL has that is no picture, by its first letters."""

_SIX_BYTES: Final = b"<>&'\x7f"
"""Written as `\\u003c` by encoders that protect HTML, as those of Go and minijinja do."""
_TWO_MORE: Final = bytes(range(128, 256)) + b",:[]{}"
"""What lies outside of ASCII may become an escape, up to three times as long. Next to punctuation there may be spaces or a line end
with an indentation, which tokenizers take as two tokens."""
_NUMBER: Final = re.compile(rb"[\[,:]\s*-?[0-9]+[.eE]")
_NUMBER_MORE: Final = 17
"""`1e15` becomes `1000000000000000.0`, `1e20` 21 digits, `0.1` 0.10000000000000001."""
_OVERLAP: Final = 64
_QUOTE, _BRACE = b'"{'
_SOME_PARTS: Final = 256

_parts: Final = msgspec.json.Decoder(list[msgspec.Raw])
_part: Final = msgspec.json.Decoder(Part)

Tokens = Generator[None, None, int]


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
    """Return the bound of a body, with a pause after each window of what is long. Raises `Refused` for too many parts."""
    text = len(raw) + len(messages) * MESSAGE_ALLOWANCE + REQUEST_ALLOWANCE
    if not _SETTINGS.issuperset(top):
        for name in top.keys() - _SETTINGS:
            text += yield from _rewritten(top[name])
        if "tools" in top or "functions" in top:
            text += TOOLS_ALLOWANCE
    escaped = raw.find(b"\\") >= 0
    parts: _Parts | None = None
    for message in messages:
        content = message.content
        if message.role not in _PLAIN_ROLES:
            text += yield from _rewritten(content)
        elif escaped and content is not ABSENT and memoryview(content)[0] == _QUOTE:
            text -= yield from _escapes(content)
        if content is not ABSENT and memoryview(content)[0] != _QUOTE:
            parts = parts or _Parts()
            text += yield from parts.add(content)
        if message.tool_calls is not ABSENT:
            text += yield from _rewritten(message.tool_calls)
        if message.function_call is not ABSENT:
            text += yield from _rewritten(message.function_call)
        if message.audio is not ABSENT and _is_given(message.audio):
            parts = parts or _Parts()
            parts.counts[_SOUND] += 1
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
        for number, item in enumerate(_parts.decode(b"[%b]" % bytes(content) if odd else content), 1):
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
            return (yield from _rewritten(content))
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
    """Return how many tokens the text of a part counts beyond its bytes. One that is not known may be written as JSON."""
    is_string = part.text is not ABSENT and memoryview(part.text)[0] == _QUOTE
    if part.type not in _KNOWN_TYPES or part.content is not ABSENT or not (is_string or part.text is ABSENT):
        return (yield from _rewritten(item))
    return -(yield from _escapes(part.text)) if is_string else 0


def _is_given(value: msgspec.Raw) -> bool:
    return value is not ABSENT and bytes(memoryview(value)[:4]) != b"null"


def _rewritten(value: msgspec.Raw) -> Tokens:
    """Return how many tokens JSON can count beyond its bytes where a template writes it again."""
    view, more = memoryview(value), 0
    for at in range(0, len(view), WINDOW):
        text = bytes(view[max(0, at - _OVERLAP) : at + WINDOW])  # what is cut in two counts in one of them
        size = len(text)
        more += 5 * (size - len(text.translate(None, _SIX_BYTES)))
        more += 2 * (size - len(text.translate(None, _TWO_MORE)))
        more += 4 * (text.count(rb"\b") + text.count(rb"\f"))  # encoders that have no short form write \u0008
        more += _NUMBER_MORE * len(_NUMBER.findall(text))
        if at + WINDOW < len(view):
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
