"""Text for people: without characters that a terminal obeys and without credentials, and as CSV without formulas.

CSV opens in a spreadsheet as it is: no text in it is a formula.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

_CREDENTIAL: Final = re.compile(r"(?i)\bsk-[a-z0-9_-]{8,}")
"""What tokens and the keys of most providers begin with."""
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
"""Characters that a terminal may obey, but line feeds and tabs; and those that change the direction of a text."""
_LINE_ENDS: Final = re.compile(r"[\t\n]")

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

_WORD: Final = re.compile(r"[^\s\"'`,;()\[\]{}<>]+")
_RUN: Final = re.compile(r"[A-Za-z0-9]+")
_CHANGE: Final = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Za-z])(?=[0-9])|(?<=[0-9])(?=[A-Za-z])")
_MARKED: Final = re.compile(
    r"\b(sk|pk|rk|gsk|xai|ghp|gho|hf|r8|glpat|nvapi|pplx|whsec|xox[abp])[-_](?=.{8})|\b(AIza|AKIA|ASIA|eyJ)|\bbearer\b|://"
    r"|\b(token|secret|password|passwd|api[-_ ]?key)\s*[:=]"
    r"|[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
    re.IGNORECASE,
)
"""How keys begin, and what only stands beside one."""

FORMULAS: Final = ("=", "+", "-", "@", "\t", "\r")
"""What begins a formula."""


def without_credentials(text: str) -> str:
    """Return a text without what looks like a token, or like the key of a provider."""
    return _CREDENTIAL.sub("sk-[hidden]", text)


def shown(text: str) -> str:
    """Return a text for a terminal: without what that would obey, and without credentials, which may have been pasted."""
    return _CONTROL.sub(_escaped, without_credentials(text))


def shown_in_line(text: str) -> str:
    """Return a text as `shown` does, for a part of one line."""
    return _LINE_ENDS.sub(_escaped, shown(text))


def printable(text: str) -> str:
    """Return a text with the escape of each character that is not seen, or changes how others are: line ends, controls, marks."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)


def names_in(text: str) -> tuple[str, ...]:
    """Return the names in a list with commas."""
    return tuple(name for part in text.split(",") if (name := part.strip()))


def counted(number: int, name: str) -> str:
    """Return a number with the name of what it counts: `1 request`, `2 requests`."""
    return f"{number} {name}{'' if number == 1 else 's'}"


def is_one_line(text: str) -> bool:
    """Return whether a text has no line ends, and nothing that a terminal may obey."""
    return not (_CONTROL.search(text) or _LINE_ENDS.search(text))


def _escaped(match: re.Match[str]) -> str:
    return repr(match[0])[1:-1]


def csv_lines(rows: Iterable[Mapping[str, object]]) -> Iterator[str]:
    """Yield rows as lines of CSV, the first one with their names; nothing where there are no rows.

    What is neither text nor a number is JSON. A text that a spreadsheet would take for a formula begins with an apostrophe, and
    has no characters that a terminal would obey.
    """
    for number, row in enumerate(rows):
        if number == 0:
            yield csv_line(row)
        yield csv_line(row.values())


def csv_line(values: Iterable[object]) -> str:
    """Return one line of CSV, with its end."""
    output = io.StringIO()
    csv.writer(output, lineterminator="\n").writerow(map(_cell, values))
    return output.getvalue()


def _cell(value: object) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        return msgspec.json.encode(value).decode()
    text = shown(value)
    return f"'{text}" if text.startswith(FORMULAS) else text


def without_secrets(text: str) -> str:
    """Return a text of several words without those that may be secrets."""
    return printable(_WORD.sub(lambda word: "[hidden]" if may_be_secret(word[0]) else word[0], text))


def may_be_secret(text: str) -> bool:
    """Return whether a name may be a secret: it has the marks of a key, or is random."""
    if _MARKED.search(text):
        return True
    letters = changes = 0
    for run in _RUN.findall(text):
        count = len(_CHANGE.findall(run))
        if len(run) >= LONG_RUN or (len(run) >= MIXED_RUN and count > MOST_CHANGES):
            return True
        letters, changes = letters + len(run), changes + count
    return letters >= SHORT and changes >= FEWEST and changes * LARGEST_SHARE >= letters
