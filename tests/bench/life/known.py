"""Deviations from the contract that are tolerated for now. Each is to be mended, and its line here removed.

Disturbances and mistakes of `AVOIDED_*` would end the run, so that they are not done.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Final

from tests.bench.life.seen import Seen

AVOIDED_DISTURBANCES: Final[Set[str]] = set()
AVOIDED_MISTAKES: Final[Set[str]] = set()
TOLERATED: Final[tuple[tuple[str, str], ...]] = ()
"""How the text of a violation begins, and of which model, or which kind of caller, it is tolerated; empty: of any."""


def tolerated(what: str, seen: Seen | None) -> bool:
    """Return whether a violation with this text is tolerated for now. `seen`: the request that it is about."""
    of = ("", seen.model, seen.kind) if seen else ("",)
    return any(what.startswith(text) and which in of for text, which in TOLERATED)
