"""The result of one check of `gateway doctor`."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

MOST_SHOWN: Final = 200
"""Characters of a text from outside that are shown."""


class Diagnosis(msgspec.Struct, frozen=True):
    """The result of one check. `code` names it for scripts. `remedy` says what to do where the verdict is not `well`."""

    subject: str
    verdict: Literal["well", "ill", "note"]
    text: str
    remedy: str = ""
    code: str = ""


def well(subject: str, text: str) -> Diagnosis:
    """Return the result of a check that passed."""
    return Diagnosis(subject, "well", text)


def ill(subject: str, code: str, text: str, remedy: str) -> Diagnosis:
    """Return the result of a check that failed: later ones depend on it."""
    return Diagnosis(subject, "ill", text, remedy, code)


def note(subject: str, code: str, text: str, remedy: str) -> Diagnosis:
    """Return the result of a check that found something which may be wrong."""
    return Diagnosis(subject, "note", text, remedy, code)


def shown(text: str, most: int = MOST_SHOWN) -> str:
    """Return a text from outside as it may be printed: without control characters, and not too long."""
    short = text if len(text) <= most else f"{text[:most]}..."
    return "".join(character if character.isprintable() else "?" for character in short)
