"""Count what each hook costs, in instructions: `python -m tests.bench.hooks [--write] [USE ...]`.

One plugin is added to the whole chain, with one hook that does nothing, and the instructions of a request and of an event are
counted as in `tests.bench.instructions`; then the same of shipped plugins, with a collector for `otel`. The tables have the
differences from the chain without them. `--write` puts them into HOOKS.md beside this file. `USE`: plugins to measure in place
of these, as a list `plugins` names them, with their settings; a file of this folder is found.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Final

from gateway.store.embedded import EmbeddedStore
from tests.bench import one_hook
from tests.bench.instructions import PATIENCE_S, ROUNDS, WARM, Figures, Worker, missing, repeat
from tests.bench.machine import commit, machine, now_utc

PAGE: Final = Path(__file__).with_name("HOOKS.md")
REQUESTS: Final = (10, 60)
REQUESTS_SHIPPED: Final = (64, 320)
"""More, since of some requests one in ten is traced, and since spans are sent in batches."""
BATCH: Final = 64
"""Spans of a batch: as many as wait at most."""
EVENTS: Final = (50, 350)

VARIANTS: Final = {
    "none": "",
    "no hook": "one_hook:Nothing",
    "`on_request`": "one_hook:OnRequest",
    "`prepare`": "one_hook:Prepare",
    "`request_step`": "one_hook:RequestStep",
    "`on_failover`": "one_hook:OnFailover",
    "`on_response`": "one_hook:OnResponse",
    "`on_chunk`": "one_hook:OnChunk",
    "`on_delta`": "one_hook:OnDelta",
    "`on_end`": "one_hook:OnEnd",
    "`on_end`, and a counter of its own": "one_hook:Counts",
}
"""What is measured, and the plugin that it is measured with."""

SHIPPED: Final = {
    "`otel`, `ratio: 0`": ("otel {endpoint: COLLECTOR, queue: QUEUE, ratio: 0}",),
    "`otel`, `ratio: 0.1`": ("otel {endpoint: COLLECTOR, queue: QUEUE, ratio: 0.1}",),
    "`otel`": ("otel {endpoint: COLLECTOR, queue: QUEUE}",),
    "`otel` and `otel-content`": ("otel {endpoint: COLLECTOR, queue: QUEUE}", "otel-content"),
    "`otel`, `ratio: 0`, and `otel-content`": ("otel {endpoint: COLLECTOR, queue: QUEUE, ratio: 0}", "otel-content"),
    "`stop-words`": ("stop-words {words: [forbidden]}",),
}
"""The same for shipped plugins."""

HEAD: Final = """# What a hook costs

Written by `python -m tests.bench.hooks --write`. One plugin is added to the whole chain, with one hook that does nothing; the
figures are instructions of the worker in user space, counted by callgrind, as differences from the chain without it. A request
is repeatable to about 0.5 %, an event to some forty instructions: what is less is none.

"""

NOTE: Final = "Events take the compiled path unless a plugin has `on_chunk` or `on_delta`."

SHIPPED_HEAD: Final = """
The same for shipped plugins. What `otel` costs has the encoding and the sending of its spans in it, in batches of 64, over HTTP to
a collector on loopback; `ratio` is which part of the requests is traced, and with 0.1 chance has a part in the figure.

"""


class Collector(BaseHTTPRequestHandler):
    """Takes what it is sent."""

    def do_POST(self) -> None:
        """Answer an export."""
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Log nothing."""


class Reloaded(Worker):
    """A worker that is given another plugin by a reload, so that it starts under callgrind only once."""

    def use(self, *plugins: str) -> None:
        """Put plugins into the chain, in place of those before, and send a few requests."""
        before = self._reloads()
        self.configure(plugins)
        self._process.send_signal(signal.SIGHUP)
        until = time.monotonic() + PATIENCE_S
        while self._reloads() == before:
            if time.monotonic() > until:
                raise RuntimeError((self._folder / "log").read_text()[-2000:])
            time.sleep(0.05)
        for _ in range(WARM):
            self.ask()
        self.ask(WARM)

    def figures(self, requests: tuple[int, int] = REQUESTS) -> Figures:
        """Return the instructions of a request and of an event."""

        def asked(times: int) -> int:
            return min(self.count(partial(repeat, self.ask, times)) for _ in range(ROUNDS))

        def events(count: int) -> int:
            return min(self.count(lambda: self.ask(count)) for _ in range(ROUNDS))

        few, many = requests
        request = (asked(many) - asked(few)) / (many - few)
        few, many = EVENTS
        return {"request": round(request), "event": round((events(many) - events(few)) / (many - few))}

    def _reloads(self) -> int:
        return (self._folder / "log").read_text().count('"event": "reloaded"')


def measured(variants: Mapping[str, str], shipped: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, Figures]]:
    """Yield each variant with its instructions."""
    with tempfile.TemporaryDirectory(prefix="hooks") as name:
        folder = Path(name)
        shutil.copy(one_hook.__file__, folder)
        for use in variants.values():
            if (own := Path(f"{use.partition(':')[0]}.py")).exists():
                shutil.copy(own, folder)
        store = EmbeddedStore.start(folder / "store")
        collector = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
        port = collector.server_address[1]
        Thread(target=collector.serve_forever, daemon=True).start()
        try:
            worker = Reloaded(folder, store.url)
            with worker.running():
                worker.prepare()
                for variant, use in variants.items():
                    worker.use(*filter(None, [use]))
                    yield variant, worker.figures()
                address = f"'http://127.0.0.1:{port}/v1/traces'"
                for variant, uses in shipped.items():
                    worker.use(*(use.replace("COLLECTOR", address).replace("QUEUE", str(BATCH)) for use in uses))
                    yield variant, worker.figures(REQUESTS_SHIPPED)
        finally:
            collector.shutdown()
            store.stop()


def table(found: dict[str, Figures], variants: Iterable[str]) -> str:
    """Return the differences of some variants from the first of all as a table."""
    base = next(iter(found.values()))
    lines = ["| one more plugin with | a request | an event |", "|---|---:|---:|"]
    lines.append("| " + " | ".join(["(the whole chain)", *(f"{base[name]:,}" for name in base)]) + " |")
    for variant, figures in ((each, found[each]) for each in variants):
        lines.append("| " + " | ".join([variant, *(f"{figures[name] - base[name]:+,}" for name in base)]) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--write", action="store_true", help="write the table into HOOKS.md")
    options.add_argument(
        "use", nargs="*", metavar="USE", help="a plugin to measure, as in my_plugin:Mine or 'NAME {SETTING: 1}'"
    )
    arguments = options.parse_args()
    if lacking := missing():
        sys.exit(f"this machine lacks {lacking}: apt-get install valgrind")
    found: dict[str, Figures] = {}
    own = {f"`{use}`": use for use in arguments.use}
    variants = {"none": "", **own} if own else VARIANTS
    for variant, figures in measured(variants, {} if own else SHIPPED):
        found[variant] = figures
        print(variant, figures, flush=True)
    hooks = table(found, list(variants)[1:])
    if own:
        print(hooks)
        return
    shipped = table(found, SHIPPED).replace("one more plugin with", "one more plugin")
    print(f"{hooks}\n{shipped}")
    if arguments.write:
        told = f"Python {sys.version.split()[0]}, {commit()}, {now_utc()} UTC, {machine()}."
        PAGE.write_text(f"{HEAD}{hooks}\n{NOTE}\n{SHIPPED_HEAD}{shipped}\n{told}\n")


if __name__ == "__main__":
    main()
