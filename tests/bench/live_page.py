"""The page Now under load: whether it stays smooth, and what callers notice of it. `python -m tests.bench.live_page [--write]`.

A gateway with its whole chain serves requests that arrive at random moments (open loop), from the upstream of the other benchmarks.
In each round, while the load goes on, nobody looks, a plain client follows the feed of the page, nobody looks once more (which
tells what is chance), Chromium shows a page that stands still, it shows the page Now, and it does so with the time that nothing
else on this machine wants, as if it were elsewhere; at the end it shows the page Now for longer. Load, upstream, gateway and
browser share all cores. In a page the intervals of `requestAnimationFrame` are measured, and tasks above 50 ms. `--write` puts the
tables into LIVE_PAGE.md beside this file. The figures depend on the machine; nothing here is a test.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from array import array
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median, quantiles
from typing import Final

from tests.bench.live_case import ADDRESSES, CASES, CORES, NOBODY, NOW, Block, Seen, Watched, Watching, loaded
from tests.bench.load import percentile
from tests.bench.machine import busy, commit, machine, now_utc, versions
from tests.bench.process import listens, running
from tests.cli.processes import free_port
from tests.whole.browser import launched

REPORT: Final = Path(__file__).with_name("LIVE_PAGE.md")
MEASURED: Final = "\n## Measured\n\n"
LONG_MS: Final = 50
QUIET_CORES: Final = 0.15
"""A round counts if what is not of the measurement took no more in any of its cases."""
LEAST: Final = 2
MORE: Final = 3
"""Rounds in place of those that do not count, at most."""


def spread(values: list[float], digits: int = 2) -> str:
    """Return the median with the quartiles."""
    first, middle, third = quantiles(values, n=4)
    return f"{middle:.{digits}f} ({first:.{digits}f}\u2013{third:.{digits}f})"


def waits(rounds: list[dict[str, Block]]) -> str:
    """Return the table of what callers and the machine notice."""
    lines = [
        "| | first event p50, ms | p99, ms | p50, ratio | p99, ratio | gateway's cores | with all of it |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for case in CASES:
        blocks = [each[case] for each in rounds]
        times = array("d", [time for block in blocks for time in block.slice.first])
        cells = [f"{percentile(times, 0.5):.2f}", f"{percentile(times, 0.99):.1f}"]
        for share in (0.5, 0.99):
            ratios = [of(each[case], share) / of(each[NOBODY], share) for each in rounds]
            cells.append("" if case == NOBODY else spread(ratios))
        cells.append(f"{median(block.slice.cpu_s / block.slice.seconds for block in blocks):.2f}")
        lines.append(f"| {case} | {' | '.join(cells)} | {median(block.own_cores for block in blocks):.2f} |")
    return "\n".join(lines)


def of(block: Block, share: float) -> float:
    """Return a percentile of a block's times to the first event."""
    return percentile(array("d", block.slice.first), share)


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


async def measure(folder: Path, rate: float, count: int, seconds: float, longer: float) -> str:
    """Return the report of a run of `count` rounds, with `seconds` for each case, and a last look for `longer` seconds."""
    upstream, cores, load_before = free_port(), f"0-{CORES - 1}", busy()
    gateway = Watched(folder / "gateway", upstream)
    command = [sys.executable, "-m", "tests.bench.upstream", str(upstream)]
    async with AsyncExitStack() as stack:
        stack.enter_context(running(command, cores, folder / "upstream.log", lambda: listens(upstream)))
        pids = stack.enter_context(gateway.serving(cores))
        while not listens(gateway.admin):
            await asyncio.sleep(0.1)
        browser = await stack.enter_async_context(launched())
        context = await browser.new_context(viewport={"width": 1440, "height": 900})
        load = await stack.enter_async_context(loaded(gateway, pids, rate))
        watching = Watching(gateway, load, context, await context.new_page())
        await watching.enter()
        rounds, tried = list[dict[str, Block]](), 0
        await watching.block(NOW, 1)
        while len(rounds) < count and tried < count + MORE:
            turn = tried % len(CASES)
            found = {case: await watching.block(case, seconds) for case in (*CASES[turn:], *CASES[:turn])}
            tried += 1
            others = max(block.other_cores for block in found.values())
            rounds += [found] if others < QUIET_CORES else []
            told = "  ".join(f"{case}: {of(found[case], 0.99):.1f}" for case in CASES)
            print(f"  first event p99, ms: {told}; others: {others:.2f} cores", file=sys.stderr, flush=True)
        if len(rounds) < LEAST:
            raise SystemExit("too much else runs on this machine")
        await watching.block(NOW, 1)
        before = await watching.memory()
        last = await watching.block(NOW, longer)
        after = await watching.memory()
        about = f"Chromium {browser.version}"
    pages = {case: [seen for each in rounds if (seen := each[case].seen)] for case in ADDRESSES}
    assert last.seen is not None
    pages[NOW].append(last.seen)
    ages = array("d", [age for each in pages[NOW] for age in each.ages])
    slices = [last.slice, *(block.slice for each in rounds for block in each.values())]
    completed, failed = sum(each.completed for each in slices), sum(each.failed for each in slices)
    return (
        f"{rate:.0f} requests/s wanted, {completed / sum(each.seconds for each in slices):.1f} had, of 20 events each. "
        f"{len(rounds)} rounds of {seconds:.1f} s for each case; {tried - len(rounds)} more left out, while something else ran. "
        f"Of {completed:,.0f} requests {failed} failed.\n\n{waits(rounds)}\n\n"
        f"{frames(pages)}\n\n"
        f"The page Now showed {last.seen.rows} rows, and in its card {last.seen.rate} requests/s. Rows changed "
        f"{len(ages) / (longer + len(rounds) * seconds):.1f} times a second; the newest request had then arrived "
        f"{percentile(ages, 0.5):.0f} ms before (p99 {percentile(ages, 0.99):.0f} ms). In {longer:.0f} s its JavaScript objects "
        f"went from {before[0]:,.0f} to {after[0]:,.0f} KiB, its nodes from {before[1]:,} to {after[1]:,}.\n\n"
        f"{versions()}, {about}, {commit()}, {now_utc()} UTC, {machine()}, {CORES} workers; load average before: {load_before}."
    )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rate", type=float, default=500, help="requests a second (500)")
    options.add_argument("--rounds", type=int, default=7, help="rounds of all cases, at least 2 (7)")
    options.add_argument("--seconds", type=float, default=2.5, help="seconds of a case in a round (2.5)")
    options.add_argument("--longer", type=float, default=15, help="seconds of the last look at the page Now (15)")
    options.add_argument("--write", action="store_true", help=f"write {REPORT.name}")
    given = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="live-page") as folder:
        text = asyncio.run(measure(Path(folder), given.rate, given.rounds, given.seconds, given.longer))
    print(text)
    if given.write:
        REPORT.write_text(f"{REPORT.read_text().partition(MEASURED)[0]}{MEASURED}{text}\n")


if __name__ == "__main__":
    main()
