"""Count what each hook costs, in instructions: `python -m tests.bench.hooks [--write]`.

One plugin is added to the whole chain, with one hook that does nothing, and the instructions of a request and of an event are
counted as in `tests.bench.instructions`. The table has the differences from the chain without it. `--write` puts it into HOOKS.md
beside this file.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

from gateway.store.client.embedded import EmbeddedStore
from tests.bench import one_hook
from tests.bench.instructions import PATIENCE_S, ROUNDS, WARM, Figures, Worker, missing, repeat
from tests.bench.machine import commit

PAGE: Final = Path(__file__).with_name("HOOKS.md")
REQUESTS: Final = (10, 60)
EVENTS: Final = (50, 350)

VARIANTS: Final = {
    "none": "",
    "no hook": "one_hook:Nothing",
    "`on_request`": "one_hook:OnRequest",
    "`request_step`": "one_hook:RequestStep",
    "`on_failover`": "one_hook:OnFailover",
    "`on_response`": "one_hook:OnResponse",
    "`on_chunk`": "one_hook:OnChunk",
    "`on_end`": "one_hook:OnEnd",
    "`on_end`, and a counter of its own": "one_hook:Counts",
}
"""What is measured, and the plugin that it is measured with."""

HEAD: Final = """# What a hook costs

Written by `python -m tests.bench.hooks --write`. One plugin is added to the whole chain, with one hook that does nothing; the
figures are instructions of the worker in user space, counted by callgrind, as differences from the chain without it. A request
is repeatable to about 0.5 %, an event to some forty instructions: what is less is none.

"""

NOTE: Final = "Events take the compiled path unless a plugin has `on_chunk`."


class Reloaded(Worker):
    """A worker that is given another plugin by a reload, so that it starts under callgrind only once."""

    def use(self, plugin: str) -> None:
        """Put a plugin into the chain, in place of the one before, and send a few requests."""
        before = self._reloads()
        self.configure([plugin] if plugin else [])
        self._process.send_signal(signal.SIGHUP)
        until = time.monotonic() + PATIENCE_S
        while self._reloads() == before:
            if time.monotonic() > until:
                raise RuntimeError((self._folder / "log").read_text()[-2000:])
            time.sleep(0.05)
        for _ in range(WARM):
            self.ask()
        self.ask(WARM)

    def figures(self) -> Figures:
        """Return the instructions of a request and of an event."""

        def asked(times: int) -> int:
            return min(self.count(partial(repeat, self.ask, times)) for _ in range(ROUNDS))

        def events(count: int) -> int:
            return min(self.count(lambda: self.ask(count)) for _ in range(ROUNDS))

        few, many = REQUESTS
        request = (asked(many) - asked(few)) / (many - few)
        few, many = EVENTS
        return {"request": round(request), "event": round((events(many) - events(few)) / (many - few))}

    def _reloads(self) -> int:
        return (self._folder / "log").read_text().count('"event": "reloaded"')


def measured() -> Iterator[tuple[str, Figures]]:
    """Yield each variant with its instructions."""
    with tempfile.TemporaryDirectory(prefix="hooks") as name:
        folder = Path(name)
        shutil.copy(one_hook.__file__, folder)
        store = EmbeddedStore.start(folder / "store")
        try:
            worker = Reloaded(folder, store.url)
            with worker.running():
                worker.prepare()
                for variant, use in VARIANTS.items():
                    worker.use(use)
                    yield variant, worker.figures()
        finally:
            store.stop()


def table(found: dict[str, Figures]) -> str:
    """Return the differences from the first as a table."""
    base = next(iter(found.values()))
    lines = ["| one more plugin with | a request | an event |", "|---|---:|---:|"]
    lines.append("| " + " | ".join(["(the whole chain)", *(f"{base[name]:,}" for name in base)]) + " |")
    for variant, figures in list(found.items())[1:]:
        lines.append("| " + " | ".join([variant, *(f"{figures[name] - base[name]:+,}" for name in base)]) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--write", action="store_true", help="write the table into HOOKS.md")
    arguments = options.parse_args()
    if lacking := missing():
        sys.exit(f"this machine lacks {lacking}: apt-get install valgrind")
    found: dict[str, Figures] = {}
    for variant, figures in measured():
        found[variant] = figures
        print(variant, figures, flush=True)
    text = table(found)
    print(text)
    if arguments.write:
        PAGE.write_text(f"{HEAD}{text}\n{NOTE} Python {sys.version.split()[0]}, {commit()}.\n")


if __name__ == "__main__":
    main()
