"""What callers and disturbances share: the gateway's address, tokens, the clock, and what was seen."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

from tests.bench.life.seen import Seen, Timeline
from tests.bench.life.upstreams import Upstreams


class World:
    """One run. `tokens`: a token's text by what it is for."""

    def __init__(self, folder: Path, port: int, upstreams: Upstreams, timeline: Timeline) -> None:
        self.folder = folder
        self.port = port
        self.upstreams = upstreams
        self.timeline = timeline
        self.tokens: dict[str, str] = {}
        self.seen: list[Seen] = []
        self.violations: list[tuple[str, Seen | None]] = []
        """What is wrong beyond what the oracle finds in `seen`."""
        self.credited = 5
        """How many requests of the account `exact` were paid for."""
        self.busy: set[str] = set()
        """Accounts that a caller has for itself at the moment."""
        self._numbers = itertools.count()

    def begin(self, kind: str, model: str, *, honest: bool = True) -> Seen:
        """Return what a caller will see of a request that it sends now."""
        seen = Seen(f"life-{next(self._numbers):07}", kind, model, self.timeline.now, honest)
        self.seen.append(seen)
        return seen

    def end(self, seen: Seen) -> None:
        """Note that the caller is done with the request."""
        seen.ended = self.timeline.now

    def wrong(self, what: str, seen: Seen | None = None) -> None:
        """Note a violation."""
        self.violations.append((what, seen))


def body_of(seen: Seen, chance: random.Random, **more: Any) -> dict[str, Any]:
    """Return a request's body: a question of some words, and the tag for the upstream's account."""
    question = " ".join(f"q{chance.randrange(1000)}" for _ in range(chance.randint(1, 40)))
    body: dict[str, Any] = {
        "model": seen.model,
        "messages": [{"role": "user", "content": question}],
        "stream": True,
        "user": seen.tag,
        "words": chance.randint(2, 30),
        "max_tokens": 1000,
    }
    return body | more
