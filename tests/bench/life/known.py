"""Deviations from the contract that are tolerated for now. Each is to be mended, and its line here removed.

Disturbances and mistakes of `AVOIDED_*` would end the run, so that they are not done.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Final

from tests.bench.life.seen import Seen

AVOIDED_DISTURBANCES: Final[Set[str]] = {
    "mistake_and_kill",  # no worker starts again while the file has a plugin that raises in `start`
}
AVOIDED_MISTAKES: Final[Set[str]] = {
    "a hold that is no number",  # the parent ends
    "a hold without end",  # it is taken up, and each request is a 500
    "a lease of a day",  # likewise
}
TOLERATED: Final = (
    # How the text of a violation begins, and of which model, or which kind of caller, it is tolerated; empty: of any.
    ("charge: ", "usage-early"),  # usage that is told before the finish is taken as final
    ("charge: ", "usage-zero"),  # so is usage of zero
    ("charge: ", "usage-in-choice"),  # usage in a choice is not read
    ("charge: ", "logprobs"),  # an estimate counts the bytes of events
    ("charge: ", "leaves at finish"),  # the usage after the finish is not waited for
    ("not allowed: error-bare gave whole", ""),
    ("not allowed: status-413 gave 502", ""),
    ("outcome while the disk was full: gateway_crashed ", ""),  # the end of a request is lost while the disk is full
    ("a traceback of a full disk: ", ""),  # one for each request while the disk is full
)


def tolerated(what: str, seen: Seen | None) -> bool:
    """Return whether a violation with this text is tolerated for now. `seen`: the request that it is about."""
    of = ("", seen.model, seen.kind) if seen else ("",)
    return any(what.startswith(text) and which in of for text, which in TOLERATED)
