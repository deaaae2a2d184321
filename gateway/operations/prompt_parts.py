"""The parts of prompts in the bodies of operations beside chat completions: how many are no text, their bytes, and their keys.

A part is judged by some of its keys. One that it has twice is read by decoders in two ways, and so is one in another spelling
(`Type`): an object with either is refused.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Generator, Mapping
from functools import lru_cache
from typing import Final

import msgspec

from gateway.base.errors import Refused
from gateway.chat.fields import fold
from gateway.chat.prompt import ENCODED_TOKENS, MAX_PARTS, WINDOW, PromptBound
from gateway.chat.usage import BYTES_PER_TOKEN

IMAGE, SOUND, FILE = range(3)
SOME: Final = 256
"""Parts that are counted without a pause."""
MOST_REFERENCES: Final = 1000
"""Ids of what an upstream keeps that one request may name."""
MOST_LEVELS: Final = 4
"""Levels of parts within parts. Each is read once more, so that deeper ones would take time without end."""

USE_ONE: Final = "send a request for each answer"
"""In place of `n`, which these operations do not have."""

MAX_KEYS: Final = 64
"""Keys of an item, a block, a message or a tool. The APIs have twenty at most."""
MAX_KEY: Final = 64
"""Letters of a key that are compared."""
JUDGED: Final = frozenset(
    (
        *(
            "type",
            "id",
            "role",
            "content",
            "output",
            "summary",
            "encrypted_content",
            "image_url",
            "file_data",
            "input_audio",
        ),
        *("source", "media_type", "data", "cache_control", "ttl", "model", "tools", "edits"),
    )
)
"""The keys by which items, blocks, messages and tools are judged."""
LISTED: Final = frozenset(("edits", "tools"))
"""Those with a list of objects that are judged where they stand."""
_FOLDED: Final = frozenset(map(fold, JUDGED))
_KEY: Final = re.compile(rb'[\s,]*"([^"\\]*(?:\\.[^"\\]*)*)"\s*:\s*')

_object = msgspec.json.Decoder(dict[str, msgspec.Raw])
_list = msgspec.json.Decoder(list[msgspec.Raw])
_text = msgspec.json.Decoder(str)


class Parts:
    """The most tokens of a prompt of `size` bytes: one for each byte, and what each encoded part counts in place of its bytes."""

    def __init__(self, size: int, allowed: Collection[str] = ()) -> None:
        """`allowed`: the fields that are accepted although they may change the price."""
        self.text = self.size = size
        self.allowed = allowed
        self.counts = [0, 0, 0]
        self.encoded = 0
        self.refers: dict[str, None] = {}
        """The ids that are named of what an upstream keeps."""

    def refer(self, name: str) -> None:
        """Note an id. Raises `Refused` for too many."""
        self.refers[name] = None
        if len(self.refers) > MOST_REFERENCES:
            text = f"The body names more than {MOST_REFERENCES} items by their ids. Send the conversation as 'input'."
            raise Refused(400, "invalid_request", text, param="input")

    def add(self, kind: int, encoded: int = 0) -> None:
        """Count a picture, sound or file, of whose bytes only a decoder can read so many. Raises `Refused` for too many."""
        self.counts[kind] += 1
        self.encoded += encoded
        if sum(self.counts) > MAX_PARTS:
            raise Refused(
                400, "invalid_request", f"The body has more than {MAX_PARTS} pictures, sounds and files. Send fewer."
            )

    @staticmethod
    def check_level(name: str, level: int) -> None:
        """Raise `Refused` for parts within parts within parts."""
        if level > MOST_LEVELS:
            text = f"'{name}' has parts that are nested deeper than {MOST_LEVELS} levels. Send them flatter."
            raise Refused(400, "invalid_request", text, param=name)

    @property
    def bound(self) -> PromptBound:
        """The most tokens of the prompt."""
        return PromptBound(self.text - self.encoded, *self.counts)

    @property
    def estimate(self) -> int:
        """An estimate of the tokens of the prompt."""
        return -(-max(self.size - self.encoded, 0) // BYTES_PER_TOKEN) + sum(self.counts) * ENCODED_TOKENS


def check_keys(name: str, raw: msgspec.Raw, level: int = 1) -> None:
    """Check the keys of an object in the field `name`, and of those in it by which it is judged. Raises `Refused`.

    Raises `msgspec.DecodeError` for what is no object.
    """
    Parts.check_level(name, level)
    top = _object.decode(raw)
    if len(top) > MAX_KEYS:
        raise Refused(400, "invalid_request", f"'{name}' has an object with more than {MAX_KEYS} keys.", param=name)
    for key, value in top.items():
        if key not in JUDGED:
            if _is_another_spelling(key[:MAX_KEY]):
                raise _unclear(name, key, "is another spelling of a key that is checked")
        elif bytes(memoryview(value)[:1]) == b"{":
            check_keys(name, value, level + 1)
        elif key in LISTED and bytes(memoryview(value)[:1]) == b"[":
            for each in _list.decode(value):
                if bytes(memoryview(each)[:1]) == b"{":
                    check_keys(name, each, level + 1)
    # Without spaces, escapes and repetitions, an object is as long as its keys and values with what stands between them.
    least = 1 + sum(len(key) + 4 for key in top) + sum(len(memoryview(value)) for value in top.values())
    if top and least != len(memoryview(raw)):
        _check_once(name, raw, top)


def check_each(name: str, top: Mapping[str, msgspec.Raw], given: bool) -> Generator[None, None, None]:
    """Check the keys of the objects in the field `name`, if it is `given`. Raises `Refused`."""
    for number, raw in enumerate(_list.decode(top[name]) if given else (), 1):
        check_keys(name, raw)
        if number % SOME == 0 or len(memoryview(raw)) > WINDOW:
            yield


def _check_once(name: str, raw: msgspec.Raw, top: Mapping[str, msgspec.Raw]) -> None:
    """Follow the keys of an object. Each value must be the one that was decoded for its key, which is the last of several."""
    text, at, seen, key = bytes(raw), 1, set[str](), ""
    while (match := _KEY.match(text, at)) is not None:
        key = _text.decode(b'"%b"' % match[1])
        value = bytes(top[key])
        if key in seen or not text.startswith(value, match.end()):
            raise _unclear(name, key, "comes twice")
        seen.add(key)
        at = match.end() + len(value)
    if text[at:].strip() != b"}":  # a longer value that begins like the last one
        raise _unclear(name, key, "comes twice")


@lru_cache(1024)
def _is_another_spelling(key: str) -> bool:
    return fold(key) in _FOLDED


def _unclear(name: str, key: str, why: str) -> Refused:
    shown = ascii(key[:MAX_KEY])[1:-1]
    return Refused(
        400, "invalid_request", f"'{shown}' within '{name}' {why}. Send each key once, as documented.", param=name
    )
