"""The result of one check of a plugin."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec


class Finding(msgspec.Struct, frozen=True):
    """The result of one check. `text` says what was seen, or what is wrong and how to mend it."""

    check: str
    passed: bool
    text: str

    @classmethod
    def of(cls, check: str, problems: Iterable[str], text: str) -> Finding:
        """Return a finding that lists the problems, each once; or one that passed, with `text`, if there are none."""
        distinct = list(dict.fromkeys(problems))
        return cls(check, not distinct, "; ".join(distinct) or text)
