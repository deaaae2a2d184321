"""Other gateways that may have requests which they have not handed over: what an answer says about them.

The sink keeps them with the gaps on its disk, so that a list says what it may lack without asking the store.
"""

from __future__ import annotations

from typing import Final

import msgspec

from gateway.request_id import LAST_MS, utc

SETTLED_MS: Final = 10_000
"""After its arrival, so long at most it takes until a request is in the stream, or in the spool of its gateway."""


class Away(msgspec.Struct, frozen=True, array_like=True):
    """One of them. `name`: that which its records have. `files`: what it had to hand over when it was last heard of.

    `forgotten_ms`: when an operator said that it has gone, else 0.
    """

    name: str
    host: str
    heard_ms: int
    files: int = 0
    forgotten_ms: int = 0

    @property
    def between_ms(self) -> tuple[int, int]:
        """When a request arrived that it may have: with files to hand over, at any time before, too."""
        return 0 if self.files else self.heard_ms - SETTLED_MS, self.forgotten_ms or LAST_MS

    def note(self, *, with_host: bool = True) -> str:
        """Return a sentence that names it. Callers do not learn its host."""
        name = f"{self.host} ({self.name})" if with_host else self.name
        heard = f"gateway {name} was last heard of at {utc(self.heard_ms)}"
        if self.forgotten_ms:
            return f"{heard} and forgotten at {utc(self.forgotten_ms)}: what it had then is lost"
        return f"{heard}{held(self.files)}: requests of it may be missing here"


def held(files: int) -> str:
    """Return the words for files that a gateway had to hand over; empty where there were none."""
    return f", and had {files} files to hand over" if files else ""
