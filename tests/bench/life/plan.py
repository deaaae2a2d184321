"""The plan of a run: which caller comes when, and what is done to the gateway when. All of it follows from the seed."""

from __future__ import annotations

import random
from typing import Final

import msgspec

from tests.bench.life.callers import HONEST, Caller
from tests.bench.life.disturbances import DECK, LONG_DECK
from tests.bench.life.hostile import HOSTILE
from tests.bench.life.known import AVOIDED_DISTURBANCES
from tests.bench.life.openai_client import CLIENT

CALM_S: Final = 10.0
"""At the end nothing is disturbed, so that what was is over before the callers stop."""
WARM_S: Final = 5.0
LONG_S: Final = 600.0
"""A run that is longer is restarted twice before its first measurement, and its clock steps."""
LONGEST_WARM_UP_S: Final = 300.0
"""What is remembered for a minute or two is remembered by then: memory is level from there on, or something grows."""
CALLERS: Final[dict[Caller, int]] = HONEST | HOSTILE | CLIENT


class Visit(msgspec.Struct, frozen=True):
    """A caller comes at `at` seconds; its own decisions follow from `seed`."""

    at: float
    caller: Caller
    seed: str


class Deed(msgspec.Struct, frozen=True):
    """A disturbance of this name begins at `at` seconds, or when the one before it is over."""

    at: float
    name: str
    seed: str


class Plan(msgspec.Struct, frozen=True):
    """All visits and deeds in order, and when the gateway's resources are measured first."""

    visits: list[Visit]
    deeds: list[Deed]
    measured_at: float
    calm_at: float
    """No deed begins later; on a busy machine some take so long that the last are left out."""


def plan(seed: int, seconds: float, rate: float) -> Plan:
    """Return the plan of a run of `seconds` with `rate` visits a second."""
    measured_at = min(LONGEST_WARM_UP_S, max(20.0, 0.3 * seconds))
    visits, deeds = _visits(seed, seconds, rate), _deeds(seed, seconds, measured_at)
    return Plan(visits, deeds, measured_at, seconds - CALM_S)


def _visits(seed: int, seconds: float, rate: float) -> list[Visit]:
    chance = random.Random(f"visits {seed}")
    callers, weights = list(CALLERS), list(CALLERS.values())
    visits: list[Visit] = []
    at = 0.0
    while (at := at + chance.expovariate(rate)) < seconds:
        (caller,) = chance.choices(callers, weights)
        visits.append(Visit(at, caller, f"{seed} {len(visits)}"))
    return visits


def _deeds(seed: int, seconds: float, measured_at: float) -> list[Deed]:
    """Restart the gateway before the first measurement, then play the deck again and again."""
    chance = random.Random(f"deeds {seed}")
    gap_s = min(12.0, max(3.0, (seconds - measured_at - CALM_S) / (len(DECK) + 2)))
    restarts = [WARM_S + (measured_at - WARM_S) * each for each in ((0.3, 0.6) if seconds > LONG_S else (0.3,))]
    deeds = [Deed(at, "restart", f"{seed} restart {at}") for at in restarts]
    at, deck = measured_at, list[str]()
    while (at := at + chance.uniform(0.7, 1.3) * gap_s) < seconds - CALM_S:
        if not deck:
            deck = [name for name in (LONG_DECK if seconds > LONG_S else DECK) if name not in AVOIDED_DISTURBANCES]
            chance.shuffle(deck)
        deeds.append(Deed(at, deck.pop(), f"{seed} {len(deeds)}"))
    return deeds
