"""What a plugin changed in a request, as the lines of a difference."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import unified_diff
from typing import Final

import msgspec

MOST_LINES: Final = 200
MOST_CHARACTERS: Final = 400


def differences(before: Mapping[str, msgspec.Raw], after: Mapping[str, msgspec.Raw]) -> list[str]:
    """Return the lines that differ between two bodies: `-` for what was, `+` for what is. Long lines are cut, and many left out."""
    lines = list(_changes(before, after))
    left_out = [f"  ({len(lines) - MOST_LINES} more lines)"] if len(lines) > MOST_LINES else []
    return [line[:MOST_CHARACTERS] + "..." * (len(line) > MOST_CHARACTERS) for line in lines[:MOST_LINES]] + left_out


def _changes(before: Mapping[str, msgspec.Raw], after: Mapping[str, msgspec.Raw]) -> Iterator[str]:
    for name in {**before, **after}:
        if before.get(name) == after.get(name):
            continue
        compared = unified_diff(_lines(name, before), _lines(name, after), n=0, lineterm="")
        yield from (line for line in compared if not line.startswith(("---", "+++", "@@")))


def _lines(name: str, body: Mapping[str, msgspec.Raw]) -> list[str]:
    """Return a field as lines of JSON, indented; none where the body does not have it."""
    if name not in body:
        return []
    text = msgspec.json.format(bytes(body[name]), indent=2).decode()
    return f"{name}: {text}".splitlines()
