"""Plots: SVG that is made on the server. Widths are in percent and heights in pixels, so that one fits any screen unbent."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor, log10
from typing import Final

import msgspec

from gateway.amounts import MICROS, amount

HEIGHT: Final = 200
LINES: Final = 4
"""Lines of the grid above zero, about."""
LABELS: Final = 5


class Bar(msgspec.Struct, frozen=True):
    """A bar: where it is, in percent of the width and in pixels from above."""

    x: float
    width: float
    y: float
    height: float


class Day(msgspec.Struct, frozen=True):
    """What a plot has of one day: its charge and its cost in micros. `bars` are those of the charge and of the cost."""

    name: str
    charge_micros: int
    cost_micros: int
    bars: tuple[Bar, Bar]


class Plot(msgspec.Struct, frozen=True):
    """A plot of days. `scale`: the labels of the lines of the grid, the highest first. `marks`: days that are named below."""

    height: int
    days: list[Day]
    scale: list[str]
    lines: list[float]
    marks: list[str]


def plot_of(days: Sequence[tuple[str, int, int]]) -> Plot | None:
    """Return the plot of days, each with its charge and its cost in micros; None where there is nothing to see."""
    top = max((max(charge, cost) for _, charge, cost in days), default=0)
    if top <= 0:
        return None
    step = _step(top)
    lines = ceil(top / step)
    whole = step * lines

    def bar(index: int, part: int, micros: int) -> Bar:
        room = 100 / len(days)
        height = max(0.0, HEIGHT * micros / whole)
        return Bar(round(room * (index + 0.15 + 0.36 * part), 3), round(room * 0.34, 3), HEIGHT - height, height)

    drawn = [
        Day(name, charge, cost, (bar(index, 0, charge), bar(index, 1, cost)))
        for index, (name, charge, cost) in enumerate(days)
    ]
    decimals = len(amount(step).partition(".")[2])
    scale = [f"{step * line / MICROS:,.{decimals}f}" for line in range(lines, -1, -1)]
    marks = sorted({round(index * (len(days) - 1) / (LABELS - 1)) for index in range(LABELS)}) if len(days) > 1 else [0]
    return Plot(
        HEIGHT,
        drawn,
        scale,
        [round(HEIGHT * line / lines, 2) for line in range(lines + 1)],
        [days[index][0] for index in marks],
    )


def _step(top: int) -> int:
    """Return a round distance in micros between lines of the grid."""
    least = top / LINES
    power = 10 ** floor(log10(least))
    return max(1, int(next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least)))
