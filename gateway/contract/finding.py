"""One promise, and whether it was kept."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec


class Finding(msgspec.Struct, frozen=True):
    """What became of one check. `text` says what was seen, or what is wrong and how to mend it."""

    check: str
    passed: bool
    text: str

    @classmethod
    def of(cls, check: str, problems: Iterable[str], good: str) -> Finding:
        """Passed where there is no problem."""
        found = list(dict.fromkeys(problems))
        return cls(check, not found, "; ".join(found) or good)
