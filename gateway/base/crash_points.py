"""Crash points: places at which tests kill the process, to prove what survives.

`GATEWAY_CRASH_AT=label` or `label:n` ends the process when it reaches a label of `LABELS` for the first or the n-th time.
Without the variable a crash point is a call of `len`, which does nothing either and costs less than a function of Python. There is
none on the path of an event.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from itertools import count
from typing import Any, Final

LABELS: Final = (
    "arrival.sent",
    "hold.before",
    "hold.after",
    "upstream.before",
    "upstream.sent",
    "upstream.answered",
    "extend.before",
    "extend.after",
    "stream.begun",
    "stream.event",
    "stream.ended",
    "settle.before",
    "settle.after",
    "journal.kept",
    "journal.delivered",
    "settlements.repeated",
    "record.before",
    "record.after",
    "answer.finished",
    "archive.written",
    "external.claimed",
    "external.written",
    "import.row",
    "api.begun",
    "api.done",
    "api.kept",
)
"""In the order of a request. `extend.*` is reached only before a further attempt after one that may be billed, `settle.*` also
where a settlement is repeated, `archive.written` only by the archiver, `external.*` only where an account is given its external id,
`import.row` only by imports of accounts, `api.*` only by writes to the operator's API (begun: their key is taken; done: their
answer is not kept yet; kept: it is, but not sent yet)."""

EXIT_CODE: Final = 66


def _armed(setting: str) -> Callable[[str], None]:
    chosen, _, nth = setting.partition(":")
    if chosen not in LABELS or not (nth or "1").isdecimal():
        sys.exit(
            f"GATEWAY_CRASH_AT: must be one of {', '.join(LABELS)}, or such a label and a number as in hold.after:3"
        )
    times = count(1)

    def crash(label: str) -> None:
        if label == chosen and next(times) == int(nth or "1"):
            os._exit(EXIT_CODE)

    return crash


_setting = os.environ.get("GATEWAY_CRASH_AT", "")

point: Final[Callable[[str], object]] = _armed(_setting) if _setting else len
"""Mark that the process has reached a label."""

on_event: Final[tuple[tuple[str, Callable[[Any, bytes], object]], ...]] = (
    (("crash point", lambda *_: point("stream.event")),) if _setting else ()
)
"""Hooks that a relay calls before each write, as those of plugins, with a name. Empty without the variable."""
