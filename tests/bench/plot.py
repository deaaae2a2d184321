"""Plots as SVG: lines and bars."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

WIDTH, HEIGHT, MARGIN = 640, 320, 56
COLOURS: Final = ("#1f6feb", "#8b949e", "#d29922")

Points = Sequence[tuple[float, float]]


def lines(y_name: str, x_name: str, drawn: Mapping[str, Points], *, logarithmic: bool = False) -> str:
    """Return a plot with a line for each name. The y axis begins at zero; `logarithmic` is for the x axis."""
    xs = [x for points in drawn.values() for x, _ in points]
    top = max(y for points in drawn.values() for _, y in points) * 1.1
    scale = math.log if logarithmic else float
    low, high = scale(min(xs)), scale(max(xs))

    def place(x: float, y: float) -> tuple[float, float]:
        across = MARGIN + (scale(x) - low) / (high - low or 1) * (WIDTH - 2 * MARGIN)
        return round(across, 1), round(HEIGHT - MARGIN - y / top * (HEIGHT - 2 * MARGIN), 1)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{MARGIN}" y="{MARGIN - 24}">{y_name}</text>',
        f'<text x="{WIDTH / 2}" y="{HEIGHT - 12}" text-anchor="middle">{x_name}</text>',
    ]
    for step in range(5):
        y = top * step / 4
        height = place(xs[0], y)[1]
        parts.append(f'<path d="M{MARGIN} {height}H{WIDTH - MARGIN}" stroke="#ddd"/>')
        parts.append(f'<text x="{MARGIN - 6}" y="{height + 4}" text-anchor="end">{y:.0f}</text>')
    for x in sorted(set(xs)):
        parts.append(f'<text x="{place(x, 0)[0]}" y="{HEIGHT - MARGIN + 16}" text-anchor="middle">{x:g}</text>')
    for number, (name, points) in enumerate(drawn.items()):
        colour = COLOURS[number % len(COLOURS)]
        path = " ".join(f"{x},{y}" for x, y in (place(*point) for point in points))
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(
            f'<text x="{WIDTH - MARGIN}" y="{MARGIN - 24 + 16 * number}" text-anchor="end" fill="{colour}">{name}</text>'
        )
    return "\n".join([*parts, "</svg>\n"])


def bars(title: str, drawn: Mapping[str, float]) -> str:
    """Return a plot with a bar and its figure for each name. The scale is logarithmic and begins at one."""
    top = math.log(max(2.0, *drawn.values()))
    height = 2 * MARGIN + 24 * len(drawn)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="{MARGIN}" y="{MARGIN - 24}">{title}</text>',
    ]
    left = 2 * MARGIN
    for number, (name, value) in enumerate(drawn.items()):
        y = MARGIN + 24 * number
        width = max(1.0, math.log(max(1.0, value)) / top * (WIDTH - left - 2 * MARGIN))
        colour = COLOURS[min(number, 1)]
        parts.append(f'<text x="{left - 8}" y="{y + 13}" text-anchor="end">{name}</text>')
        parts.append(f'<rect x="{left}" y="{y}" width="{width:.1f}" height="18" fill="{colour}"/>')
        parts.append(f'<text x="{left + width + 6:.1f}" y="{y + 13}">{value:g}</text>')
    return "\n".join([*parts, "</svg>\n"])
