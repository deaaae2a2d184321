"""Charts of the last hour, day or week: errors, first bytes, tokens and money. Each point leads to its requests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from aiohttp import web

from gateway.admin.pages.now import check
from gateway.admin.pages.requests import TIMES
from gateway.admin.pages.view import Page, Plot, View, count, plot_of, span
from gateway.base.ids import utc
from gateway.usage.completeness import notes
from gateway.usage.database import UnusableFile
from gateway.usage.home import Home
from gateway.usage.queries import over_months, rollups_of
from gateway.usage.rollups import ROLLUP_SUMS, WAITS_MS, quantile


class Span(NamedTuple):
    """The points of a chart: the step of their roll-ups, how long each is, and how many they are."""

    step: str
    size_s: int
    points: int


SPANS: Final = {"1h": Span("minute", 120, 30), "24h": Span("hour", 3600, 24), "7d": Span("hour", 4 * 3600, 42)}
_WAITS: Final = len(ROLLUP_SUMS) - len(WAITS_MS) - 1


async def show(view: View) -> web.StreamResponse:
    """Show the charts, of all models or of one."""
    check(view)
    since = view.request.query.get("since", "")
    since = since if since in SPANS else next(iter(SPANS))
    model = view.request.query.get("model", "")
    span_ = SPANS[since]
    first_s = (int(time.time()) // span_.size_s + 1 - span_.points) * span_.size_s
    unusable: list[UnusableFile] = []
    sums = await asyncio.to_thread(_sums, view.client.usage_home, span_, first_s, model, unusable)
    names, links = [], []
    for number in range(span_.points):
        at, end = ((first_s + place * span_.size_s) for place in (number, number + 1))
        names.append(datetime.fromtimestamp(at, view.zone).strftime("%H:%M" if span_.size_s < 3600 * 4 else "%a %H:%M"))
        times = {"since": utc(at * 1000)[:16] + "Z", "until": utc(end * 1000)[:16] + "Z"}
        links.append("/requests?" + urlencode(times | ({"model": model} if model else {})))

    def plot(labels: tuple[str, str], pairs: Sequence[tuple[int, int]], shown: Any = None) -> Plot | None:
        columns = [(name, *pair) for name, pair in zip(names, pairs, strict=True)]
        return plot_of(columns, labels, shown, links)

    def pairs(one: str, other: str) -> list[tuple[int, int]]:
        places = ROLLUP_SUMS.index(one), ROLLUP_SUMS.index(other)
        return [(point[places[0]], point[places[1]]) for point in sums]

    waits = [(quantile(point[_WAITS:], 0.5), quantile(point[_WAITS:], 0.95)) for point in sums]
    charts = [
        (
            "Requests that failed or were refused",
            "errors",
            plot(("failed", "refused"), pairs("failed", "refused"), count),
        ),
        ("Until the first byte", "waits", plot(("half within", "95 % within"), waits, span)),
        ("Tokens", "tokens", plot(("prompts", "answers"), pairs("prompt_tokens", "completion_tokens"), count)),
        ("Money", "money", plot(("charge", "cost"), pairs("charge_micros", "cost_micros"))),
    ]
    total = [sum(column) for column in zip(*sums, strict=True)]
    return view.page(
        "charts.html",
        charts=charts,
        total=dict(zip(ROLLUP_SUMS, total, strict=True)),
        p50=quantile(total[_WAITS:], 0.5),
        p95=quantile(total[_WAITS:], 0.95),
        since=since,
        times=TIMES,
        model=model,
        models=list(view.client.config.models),
        terms=urlencode({"model": model}) if model else "",
        notes=[*notes(view.client.usage_home, first_s * 1000, None), *dict.fromkeys(map(str, unusable))],
    )


def _sums(home: Home, wanted: Span, first_s: int, model: str, unusable: list[UnusableFile]) -> list[list[int]]:
    """Return the sums of each point."""
    found = [[0] * len(ROLLUP_SUMS) for _ in range(wanted.points)]
    since, until = utc(first_s * 1000), utc((first_s + wanted.points * wanted.size_s) * 1000)
    read = partial(rollups_of, step=wanted.step, since=since, until=until, model=model)
    for at, *sums in over_months(home, since[:7], until[:7], unusable, read):
        began = datetime.fromisoformat(at).replace(tzinfo=UTC).timestamp()
        point = found[int(began - first_s) // wanted.size_s]
        point[:] = map(int.__add__, point, sums)
    return found


PAGES: Final[tuple[tuple[str, str, Page], ...]] = (("GET", "/charts", show),)
