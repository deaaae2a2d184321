"""The parts of prompts that are no text, in the bodies of operations beside chat completions: how many, and their bytes."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from gateway.base.errors import Refused
from gateway.chat.prompt import ENCODED_TOKENS, MAX_PARTS, PromptBound
from gateway.chat.usage import BYTES_PER_TOKEN

IMAGE, SOUND, FILE = range(3)
SOME: Final = 256
"""Parts that are counted without a pause."""
MOST_REFERENCES: Final = 1000
"""Ids of what an upstream keeps that one request may name."""
MOST_LEVELS: Final = 4
"""Levels of parts within parts. Each is read once more, so that deeper ones would take time without end."""


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
