"""The page Now under load: whether it stays smooth, and what callers notice of it. `python -m tests.bench.live_page [--write]`.

A gateway with its whole chain serves requests that arrive at random moments (open loop), from the upstream of the other benchmarks.
In each round the same load runs while nobody looks, while a plain client follows the feed of the page, while Chromium shows a page
that stands still, and while it shows the page Now; then once more, for longer, with the page Now. Load, upstream, gateway and
browser share all cores of this machine. In a page the intervals of `requestAnimationFrame` are measured, and tasks above 50 ms.
`--write` puts the tables into LIVE_PAGE.md beside this file. The figures depend on the machine; nothing here is a test.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from array import array
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Final

from tests.bench.live_case import BASES, CORES, NOBODY, NOW, STILL, Block, Seen, Watched, Watching
from tests.bench.load import percentile
from tests.bench.machine import busy, commit, machine, now_utc, versions
from tests.bench.process import listens, running
from tests.cli.processes import free_port
from tests.whole.browser import launched

REPORT: Final = Path(__file__).with_name("LIVE_PAGE.md")
LONG_MS: Final = 50


def spread(values: list[float], digits: int = 2) -> str:
    """Return the median with the least and the largest."""
    return f"{median(values):.{digits}f} ({min(values):.{digits}f}\u2013{max(values):.{digits}f})"


def waits(rounds: list[dict[str, Block]]) -> str:
    """Return the table of what callers and the machine notice: medians of the rounds, and the least and the largest."""
    lines = [
        "| | requests/s | first event p50, ms | p99, ms | p50 / without | p99 / without | gateway's cores | all cores |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for case in (NOBODY, *BASES):

        def ratio(name: str, case: str = case) -> str:
            base = BASES.get(case)
            return spread([each[case].load[name] / each[base].load[name] for each in rounds]) if base else ""

        def of(name: str, case: str = case) -> list[float]:
            return [each[case].load[name] for each in rounds]

        cells = [f"{median(of('requests_per_s')):.0f}", spread(of("first_ms_p50")), spread(of("first_ms_p99"), 1)]
        cells += [ratio("first_ms_p50"), ratio("first_ms_p99"), f"{median(of('cpu_share')):.2f}"]
        lines.append(f"| {case} | {' | '.join(cells)} | {median(each[case].busy_cores for each in rounds):.2f} |")
    return "\n".join(lines)


def frames(pages: dict[str, list[Seen]]) -> str:
    """Return the table of frames."""
    lines = [
        "| | frames | p50, ms | p95, ms | p99, ms | longest, ms | above 50 ms | long tasks | longest, ms |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for case, seen in pages.items():
        times = array("d", [time for each in seen for time in each.frames])
        long = [time for each in seen for time in each.long]
        shares = [f"{percentile(times, share):.1f}" for share in (0.5, 0.95, 0.99, 1)]
        above = sum(time > LONG_MS for time in times)
        cells = [
            f"{len(times):,}",
            *shares,
            f"{above} ({above / len(times):.2%})",
            len(long),
            f"{max(long, default=0):.0f}",
        ]
        lines.append(f"| {case} | {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


async def measure(
    folder: Path, rate: float, count: int, seconds: float, longer: float, tell: Callable[[str], None]
) -> None:
    upstream = free_port()
    gateway = Watched(folder / "gateway", upstream)
    cores, load_before = f"0-{CORES - 1}", busy()
    command = [sys.executable, "-m", "tests.bench.upstream", str(upstream)]
    with ExitStack() as stack:
        stack.enter_context(running(command, cores, folder / "upstream.log", lambda: listens(upstream)))
        pids = stack.enter_context(gateway.serving(cores))
        while not listens(gateway.admin):
            await asyncio.sleep(0.1)
        async with launched() as browser:
            context = await browser.new_context(viewport={"width": 1440, "height": 900})
            watching = Watching(gateway, pids, context, await context.new_page(), rate)
            await watching.enter()
            cases, rounds = (NOBODY, *BASES), list[dict[str, Block]]()
            for number in range(count):
                turn = number % len(cases)
                rounds.append({case: await watching.block(case, seconds) for case in (*cases[turn:], *cases[:turn])})
            await watching.block(NOW, 1)
            before = await watching.memory()
            last = await watching.block(NOW, longer)
            after = await watching.memory()
            about = f"Chromium {browser.version}"
    pages = {case: [found for each in rounds if (found := each[case].seen)] for case in (STILL, NOW)}
    assert last.seen is not None
    pages[NOW].append(last.seen)
    ages = array("d", [age for each in pages[NOW] for age in each.ages])
    blocks = [last, *(block for each in rounds for block in each.values())]
    requests = sum(block.load["completed"] for block in blocks)
    failed = sum(block.load["wrong"] + block.load["cut"] for block in blocks)
    shown_s = longer + count * seconds
    tell(
        f"{rate:.0f} requests/s at random moments, of 20 events each, which come at once; {count} rounds of {seconds:.0f} s for "
        f"each case; of {requests:,.0f} requests {failed:.0f} failed.\n\n{waits(rounds)}\n\n"
        f"{frames(pages)}\n\n"
        f"The page Now showed {last.seen.rows} rows, and in its card {last.seen.rate} requests/s. Rows changed "
        f"{len(ages) / shown_s:.1f} times a second; the newest request had then arrived {percentile(ages, 0.5):.0f} ms before "
        f"(p99 {percentile(ages, 0.99):.0f} ms). In {longer:.0f} s its JavaScript objects went from {before[0]:,.0f} to "
        f"{after[0]:,.0f} KiB, its nodes from {before[1]:,} to {after[1]:,}.\n\n"
        f"{versions()}, {about}, {commit()}, {now_utc()} UTC, {machine()}, {CORES} workers; load average before: {load_before}."
    )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rate", type=float, default=500, help="requests a second (500)")
    options.add_argument("--rounds", type=int, default=4, help="rounds of all cases (4)")
    options.add_argument("--seconds", type=float, default=8, help="seconds of a case in a round (8)")
    options.add_argument("--longer", type=float, default=30, help="seconds of the last look at the page Now (30)")
    options.add_argument("--write", action="store_true", help=f"write {REPORT.name}")
    given = options.parse_args()

    def tell(text: str) -> None:
        print(text)
        if given.write:
            REPORT.write_text(REPORT.read_text().partition("\n## Measured\n")[0] + f"\n## Measured\n\n{text}\n")

    with tempfile.TemporaryDirectory(prefix="live-page") as folder:
        asyncio.run(measure(Path(folder), given.rate, given.rounds, given.seconds, given.longer, tell))


if __name__ == "__main__":
    main()
