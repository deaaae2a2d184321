"""REPORT.md and its plots, written from the stored results."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.bench import targets
from tests.bench.bench import Rows
from tests.bench.parts import PARTS
from tests.bench.plot import Points, bars, lines
from tests.bench.results import Result, load_results

NAMES: Final = {
    "streams": "streams",
    "answers_s": "s until an answer",
    "requests_per_s": "requests/s",
    "events_per_s": "events/s",
    "cpu_share": "cores used",
    "cpu_us_per_request": "CPU µs/request",
    "cpu_us_per_event": "CPU µs/event",
    "event_ms_p50": "transit p50, ms",
    "event_ms_p99": "transit p99, ms",
    "first_ms_p50": "first event p50, ms",
    "first_ms_p99": "first event p99, ms",
    "kib_per_stream": "KiB a stream",
    "opened_s": "s until all are open",
    "whole": "time of all / of the streams",
    "completed": "complete",
    "instructions_request": "instructions/request",
    "instructions_event": "instructions/event",
    "instructions_burst": "instructions/request of 20 events at once",
    "wrong": "refused",
    "cut": "cut",
}
FIRST: Final = ("first_ms_p50", "first_ms_p99")
TRANSIT: Final = ("event_ms_p50", "event_ms_p99")
REQUESTS: Final = ("requests_per_s", "cpu_us_per_request", "cpu_share")
CROWD: Final = (
    *("streams", "completed", "wrong", "cut", "opened_s", "whole", "kib_per_stream"),
    *("events_per_s", "cpu_us_per_event", *TRANSIT),
)
COLUMNS: Final = {
    "start": ("answers_s",),
    "short": (*REQUESTS, *FIRST, "wrong", "cut"),
    "paced": ("streams", "cpu_us_per_event", *TRANSIT, "kib_per_stream", "events_per_s", "cpu_share", "wrong", "cut"),
    "first": ("requests_per_s", *FIRST),
    "variants": ("requests_per_s", "cpu_us_per_request", "cpu_us_per_event", *FIRST, "wrong", "cut"),
    "memory": ("streams", "completed", "kib_per_stream", *TRANSIT),
    "instructions": ("instructions_request", "instructions_event", "instructions_burst"),
    "events": ("cpu_us_per_event", *TRANSIT),
    "bodies": (*REQUESTS, *FIRST),
    "chain": REQUESTS,
    "workers": ("requests_per_s", "events_per_s", "cpu_us_per_request", "cpu_share"),
    "many": CROWD,
    "most": CROWD,
}
TITLES: Final = {
    "start": "Start",
    "short": "Short answers",
    "paced": "Paced answers",
    "first": "The first event at half load",
    "variants": "More in the chain",
    "memory": "Memory of a stream",
    "instructions": "Instructions",
    "events": "Size of an event's text, bytes",
    "bodies": "Size of a body, KiB",
    "chain": "Length of the chain",
    "workers": "Workers",
    "many": "Many streams",
    "most": "Most streams",
}
HEAD: Final = """# What it costs

Written by `python -m tests.bench.run`, which anyone can repeat; every figure is a median of alternating rounds. This gateway
runs its whole chain with a real store: usage-logger, auth, rate-limit, quota, model-routing, and its channel has an API key; the
others pass on what they are asked. `before` is this gateway at an earlier commit. CPU is that of a gateway's processes, without
the store, and instructions are those of user space; gateway and store share core 0, upstream and load core 1. On a
machine that others use, only ratios within one part mean anything. [PROFILE.md](PROFILE.md) says where the time goes.

"""


def write(folder: Path) -> Path:
    """Write the report beside the folder of results, and return its path."""
    results = load_results(folder)
    parts = [part for part in PARTS if part in results]
    rows = {part: results[part].rows for part in parts}
    report = folder.parent / "REPORT.md"
    text = [HEAD, _about(results), "\n## Targets\n\n", targets.table(targets.targets(rows))]
    for part in parts:
        plots = "".join(f"\n![{part}]({name})\n" for name in _plots(folder.parent, part, rows[part]))
        description = (PARTS[part].__doc__ or "").strip()
        text.append(f"\n## {TITLES[part]}\n\n{description}\n\n{_table(rows[part], COLUMNS[part])}{plots}")
    report.write_text("".join(text))
    return report


def _table(rows: Rows, columns: tuple[str, ...]) -> str:
    head = f"| | {' | '.join(NAMES[key] for key in columns)} |\n|---|{'---|' * len(columns)}\n"
    return head + "".join(
        f"| {label} | {' | '.join(f'{row[key]:,.10g}' if key in row else '' for key in columns)} |\n"
        for label, row in rows.items()
    )


def _about(results: Mapping[str, Result]) -> str:
    """Return the machine and versions, and when and how each part was measured."""
    gateways = {name: version for result in results.values() for name, version in result.gateways.items()}
    lines = [f"- {text}\n" for text in dict.fromkeys(result.machine for result in results.values())]
    lines += [f"- {text}\n" for text in dict.fromkeys(result.versions for result in results.values())]
    lines.append(f"- {', '.join(f'{name} {version}' for name, version in gateways.items())}\n")
    if len({result.commit for result in results.values()}) > 1:
        lines.append("- **The parts were measured at different commits.**\n")
    lines.append("\n| part | commit | UTC | rounds | s each | scale of crowds | load average at the end |\n")
    lines.append(f"|{'---|' * 7}\n")
    for part, each in results.items():
        cells = (part, each.commit, each.moment, each.rounds, f"{each.seconds:g}", f"{each.scale:g}", each.busy)
        lines.append(f"| {' | '.join(map(str, cells))} |\n")
    return "".join(lines)


def _plots(folder: Path, part: str, rows: Rows) -> list[str]:
    """Write the plots of a part into the folder, and return their names."""
    match part:
        case "short" | "paced":
            key = "cpu_us_per_request" if part == "short" else "cpu_us_per_event"
            drawn = bars(f"{NAMES[key]}, logarithmic", {name: row[key] for name, row in rows.items()})
        case "events":
            drawn = lines("CPU µs per event", "bytes of text", _curves(rows, "cpu_us_per_event"), logarithmic=True)
        case "bodies":
            drawn = lines("CPU µs per request", "KiB of body", _curves(rows, "cpu_us_per_request"), logarithmic=True)
        case "chain":
            drawn = lines("CPU µs per request", "plugins that do nothing", _curves(rows, "cpu_us_per_request"))
        case _:
            return []
    (folder / f"{part}.svg").write_text(drawn)
    return [f"{part}.svg"]


def _curves(rows: Rows, key: str) -> dict[str, Points]:
    """Return a curve for each gateway, from rows that are named by size and gateway."""
    curves: dict[str, list[tuple[float, float]]] = {}
    for label, row in rows.items():
        size, _, name = label.partition(" ")
        curves.setdefault(name, []).append((float(size), row[key]))
    return dict(curves)
