"""Say which part of a request takes how many instructions: `python -m tests.bench.phases [--burst]`.

The worker and its load are those of `tests.bench.instructions`. A function of Python that `PHASES` names begins a phase, and all
that it calls belongs to it, up to a function of another phase: so every instruction is in one line of the table. The hook that
sees the functions (`phases.c`, compiled for the run) keeps the interpreter from calling Python functions without C, so the sum is
some per cent above the figure of `tests.bench.instructions`. It does not see compiled functions: they belong to what called them,
which for all of F, for the beginning of an answer and for what is closed is the loop. A name that no request called is printed:
it was renamed, or is not needed here.

`--functions` makes each function of Python a phase of its own, so that a line is one function with what it calls of C.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections import Counter
from operator import itemgetter
from pathlib import Path
from typing import Final

from gateway.store.embedded import EmbeddedStore
from tests.bench import instructions
from tests.bench.instructions import Worker, missing

REQUESTS: Final = 32
"""As many as fill a segment of the replay buffers."""
FEW: Final = 4
MOST_SHOWN: Final = 120
WARM: Final = 8
SOURCE: Final = Path(__file__).with_name("phases.c")
WORKER: Final = Path(__file__).with_name("phased_worker.py")
REST: Final = "FGM loop, wake-ups, compiled: parse, events, head of the answer"

PHASES: Final[dict[str, str]] = {
    "A caller: read, head parsed": "ServerProtocol.data_received",
    "A connection's task": """
        ServerProtocol._serve_next ServerProtocol.release IncomingBody.release IncomingBody.end""",
    "A request to exchange": """
        Gateway._handle Gateway._run Gateway._exchange Exchange.__init__ IncomingBody.__init__""",
    "A runner": "ExchangeRunner.run",
    "A body: read": "IncomingBody.read",
    "B body: check": "Gateway.check check_texts",
    "C chain in: mechanics": """
        Chain.request RequestHooks.run RequestHooks._plan RequestHooks._send RequestHooks._replies
        RequestHooks._again_after RequestHooks.run_plan _command Plugin.request_step""",
    "C usage-logger in": "UsageLogger.on_request UsagePart.fill UsagePart.begin",
    "C auth in": "Auth.request_step AuthPart.fill AuthPart.read",
    "C rate-limit in": "LimitsPart.fill LimitsPart.read",
    "C quota in": "QuotaPart.fill QuotaPart.read",
    "C model-routing in": "ModelRouting.on_request RoutePart.fill",
    "D steps to a script": "run_steps submit retried",
    "D pack and write": """
        Client.run Client.submit Client.send SingleServer.submit SingleServer.send Connection.send Connection._flush
        Filled.command""",
    "D replies": "Connection.data_received",
    "E failover, breaker": "Failover.run AccountBreaker.admit_at_once AccountBreaker.answered AccountBreaker.left",
    "E upstream's connection": """
        UpstreamCall.run UpstreamCall._send UpstreamCall._open Endpoint.at_hand UpstreamCall.__init__""",
    "E upstream's request": "Body.upstream Endpoint.message",
    "F relay: set up": "UpstreamCall._relay",
    "G head of the answer": "UpstreamCall._begin",
    "H conclude, meter": "UpstreamCall._answer meter_stream conclude",
    "I chain out: mechanics": """
        ExchangeRunner._end Chain.end run_end_hooks EndHooks.run EndHooks._submit
        EndHooks._receive EndHooks._read end_by_plan Plugin.end_step""",
    "J usage-logger out: record": "UsageLogger.end_step UsagePart.fill_end",
    "J usage-logger out: encode": "line_of encode checked",
    "J usage-logger out: reply": "UsageLog.end_step.<locals>.read UsagePart.read_end",
    "J quota out": "QuotaPart.fill_end QuotaPart.read_end",
    "J rate-limit out": "LimitsPart.fill_end",
    "J auth out": "Auth.end_step AuthPart.fill_end",
    "K replay buffers": "ReplayBuffer.add",
    "L metrics": "Metrics.ended",
}  # fmt: skip
NAMES: Final = [REST, *PHASES]


def table_of_functions() -> dict[str, int]:
    """Return the phase of each function by its name."""
    return {name: place for place, phase in enumerate(PHASES, 1) for name in PHASES[phase].split()}


def build(folder: Path) -> None:
    """Compile the hook."""
    target = folder / f"phases{sysconfig.get_config_var('EXT_SUFFIX')}"
    include = sysconfig.get_path("include")
    flags = ["-O2", "-shared", "-fPIC", "-w", "-DPy_BUILD_CORE_MODULE", f"-I{include}", f"-I{include}/internal"]
    subprocess.run(["cc", *flags, str(SOURCE), "-o", str(target)], check=True)


def dumps(folder: Path) -> dict[int, Path]:
    """Return the files that callgrind has written, by number."""
    return {int(path.suffix[1:]): path for path in folder.glob("counted.*")}


def measure(*, burst: bool, functions: bool) -> list[tuple[str, float, float]]:
    """Return the phases, each with its instructions and its changes in a request."""
    with tempfile.TemporaryDirectory(prefix="phases") as name:
        folder = Path(name)
        build(folder)
        requests = FEW if functions else REQUESTS
        (folder / "phases.json").write_text(json.dumps([{} if functions else table_of_functions(), NAMES]))
        os.environ["PHASES"] = str(folder)
        instructions.QUIET_WORKER = WORKER  # type: ignore[misc]
        store = EmbeddedStore.start(folder / "store")
        try:
            worker = Worker(folder, store.url)
            with worker.running():
                worker.prepare()
                for _ in range(WARM):
                    worker.ask()
                os.kill(worker._process.pid, signal.SIGWINCH)
                time.sleep(0.5)
                worker.ask()
                time.sleep(0.5)
                before = max(dumps(folder))
                for _ in range(requests):
                    (worker.burst if burst else worker.ask)()
                time.sleep(0.5)
                found = counted({number: path for number, path in dumps(folder).items() if number > before})
                return [(name, count / requests, changes / requests) for name, count, changes in found]
        finally:
            store.stop()


def counted(files: dict[int, Path]) -> list[tuple[str, int, int]]:
    """Return the phases that the files are of, each with its instructions and the number of its files."""
    totals, changes = Counter[str](), Counter[str]()
    for path in files.values():
        text = path.read_text(errors="replace")
        total, phase = re.search(r"^totals: (\d+)", text, re.MULTILINE), re.search(r"Client Request: (.*)", text)
        if total and phase:
            totals[phase[1]] += int(total[1])
            changes[phase[1]] += 1
    return [(name, count, changes[name]) for name, count in totals.items()]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--burst", action="store_true", help="the answer comes in one write")
    options.add_argument("--functions", action="store_true", help="each function of Python by itself")
    arguments = options.parse_args()
    if lacking := missing():
        sys.exit(f"this machine lacks {lacking}: apt-get install valgrind")
    found = measure(burst=arguments.burst, functions=arguments.functions)
    groups: Counter[str] = Counter()
    if arguments.functions:
        found.sort(key=itemgetter(1), reverse=True)
    else:
        found.sort()
        for name, count, _ in found:
            groups[name.partition(" ")[0]] += round(count)
    for name, count, changes in found[:MOST_SHOWN]:
        print(f"{count:10,.0f} {changes:6.1f}  {name}")
    print("  ".join(f"{group} {count / 1000:.0f}k" for group, count in sorted(groups.items())))
    print(f"{sum(count for _, count, _ in found):10,.0f}  all")
    called = {name for name, *_ in found}
    if unused := [] if arguments.functions else [name for name in PHASES if name not in called]:
        print(f"not called: {', '.join(unused)}")


if __name__ == "__main__":
    main()
