"""A name that a caller made up, as a record may have it: short, without control characters, and nothing of what may be a secret.

A caller may paste its token, or another service's key, where a name belongs. What has the marks of one is not kept at all: a key
is random, so that it has long runs of letters and digits, or changes often between digits, small and capital letters. A password
made of words cannot be told from a name.
"""

from __future__ import annotations

import re
from typing import Final

MOST: Final = 128
"""Characters that are kept."""
LONG_RUN: Final = 20
"""Letters and digits without a mark between them that no name of a model has."""
MIXED_RUN: Final = 12
MOST_CHANGES: Final = 3
"""Changes of a run of `MIXED_RUN` that a name may have, such as those of `Mixtral8x7B`."""
LARGEST_SHARE: Final = 4
"""A text whose characters change more often than every fourth is random."""
FEWEST: Final = 5
"""Changes of a whole text, below which their share says nothing."""
SHORT: Final = 12
"""Letters and digits of a whole text, below which it is no key."""

_RUN: Final = re.compile(r"[A-Za-z0-9]+")
_CHANGE: Final = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Za-z])(?=[0-9])|(?<=[0-9])(?=[A-Za-z])")
_MARKED: Final = re.compile(
    r"\b(sk|pk|rk|gsk|xai|ghp|gho|hf|r8|glpat|nvapi|pplx|whsec|xox[abp])[-_](?=.{8})|\b(AIza|AKIA|ASIA|eyJ)|\bbearer\b|://"
    r"|\b(token|secret|password|passwd|api[-_ ]?key)\s*[:=]"
    r"|[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
    re.IGNORECASE,
)
"""How keys begin, and what only stands beside one."""


def shown_name(text: str) -> str:
    """Return the text as a record may have it, or its length alone where it may be a secret."""
    if not text:
        return ""
    if _may_be_secret(text[: 2 * MOST]):
        return f"(hidden: {len(text)} characters that may be a secret)"
    return "".join(map(_visible, text[:MOST]))[:MOST]


def _may_be_secret(text: str) -> bool:
    if _MARKED.search(text):
        return True
    letters = changes = 0
    for run in _RUN.findall(text):
        count = len(_CHANGE.findall(run))
        if len(run) >= LONG_RUN or (len(run) >= MIXED_RUN and count > MOST_CHANGES):
            return True
        letters, changes = letters + len(run), changes + count
    return letters >= SHORT and changes >= FEWEST and changes * LARGEST_SHARE >= letters


def _visible(character: str) -> str:
    """Return the character, or its escape where it is not seen or changes how others are: controls, bidirectional marks."""
    return character if character.isprintable() else character.encode("unicode_escape").decode()
