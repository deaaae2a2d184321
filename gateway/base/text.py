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
