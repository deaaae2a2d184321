"""Top-level fields that a channel always sends, and those that it never sends. Sans-I/O.

They are put into the top level of a body, which is encoded again in any case: the caller's other values stay as they are. What an
upstream might take for one of these fields, since it differs only in the case of its letters, is not sent either.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping
from typing import Any

import msgspec

from gateway.chat.fields import fold_case
from gateway.chat.prompt_bound import REQUEST_ALLOWANCE, bound_prompt


class FixedFields:
    """The fields of one channel."""

    def __init__(self, always: Mapping[str, Any], never: Iterable[str]) -> None:
        self._always = {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in always.items()}
        self._replaced = frozenset(map(fold_case, (*always, *never)))

    def replaces(self, name: str) -> bool:
        """Return whether a field of a caller is dropped, or set to another value."""
        return fold_case(name) in self._replaced

    def apply(self, top: MutableMapping[str, Any]) -> None:
        """Drop and set the fields of a body's top level."""
        for name in filter(self.replaces, list(top)):
            del top[name]
        top.update(self._always)

    def tokens_bound(self) -> int:
        """Return the most tokens that the fields that are set can add to a prompt."""
        if not self._always:
            return 0
        steps = bound_prompt(msgspec.json.encode(self._always), self._always, ())
        while True:
            try:
                next(steps)
            except StopIteration as end:
                bound: int = end.value.text
                return bound - REQUEST_ALLOWANCE
