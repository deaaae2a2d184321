"""Count the instructions of a worker for requests and for an event: `python -m tests.bench.instructions [--json]`.

A gateway's worker runs under valgrind's callgrind, with all five plugins, a real store, and a channel with an API key. This
process is its caller and its upstream: each sends only after the other has received, so that every event is a read of its own
on a machine of any speed, and the worker's own timers are slowed down. The difference of two loads is counted, the lowest of
several times.

- a request: one that is answered with one event, then finish, usage and `[DONE]` in one write;
- an event: one more in the same stream;
- a burst: a request whose whole answer, of 20 events before the last, comes in one write, as in the benchmark's short load.

The exit code is 1 where a figure is more than 5 % above its budget. The figures depend on the interpreter: `BUDGETS` has those
of two builds; others are counted and not judged.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from gateway.store.embedded import EmbeddedStore
from tests.bench.gateways import CHAIN, GENEROUS
from tests.bench.process import ROOT
from tests.bench.question import PATH, question
from tests.bench.upstream import END, EVENT, HEAD, chunk
from tests.cli.processes import free_port

TOOLS: Final = ("valgrind", "callgrind_control")
SLACK: Final = 1.05
PATIENCE_S: Final = 60.0
WARM: Final = 20
ROUNDS: Final = 2
REQUESTS: Final = (10, 40)
EVENTS: Final = (50, 550)
BURST: Final = 20
SETTLE_S: Final = 1.5
"""Longer than the period of the worker's timers: each runs once more before it is slow."""
QUIET_WORKER: Final = Path(__file__).with_name("quiet_worker.py")
END_OF_ANSWER: Final = b"0\r\n\r\n"

Figures = dict[str, int]

BUDGETS: Final[dict[tuple[int, int, int, bool], Figures]] = {
    (3, 11, 2, True): {"request": 535_000, "event": 3_900, "burst": 580_000},
    (3, 11, 7, True): {"request": 580_000, "event": 4_200, "burst": 630_000},
}
"""The highest figures for a build of Python: its version, and whether it has a shared library.

One that is raised has the reason here.

With the compiled path; a pure gateway is counted and not judged. 3.11.2 is Debian's, and takes a tenth less.
"""


def missing() -> str:
    """Return what this machine lacks for the measure; empty where it has everything."""
    return ", ".join(tool for tool in TOOLS if shutil.which(tool) is None)


class Worker:
    """A worker under callgrind, with its caller and its upstream."""

    def __init__(self, folder: Path, store: str, plugins: Sequence[str] = ()) -> None:
        self._folder = folder
        self._store = store
        self._port = free_port()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._listening.settimeout(PATIENCE_S)
        self._upstream: socket.socket | None = None
        self._configuration = folder / "bench.yaml"
        self.configure(plugins)
        self._command("init")
        self._command("account", "create", "bench", "--credit", "1000000")
        token = next(word for word in self._command("token", "create", "bench").split() if word.startswith("sk-"))
        body, headers = question(token, "", {})
        lines = [f"{name}: {value}\r\n" for name, value in {"Host": "bench", **headers}.items()]
        head = f"POST {PATH} HTTP/1.1\r\n{''.join(lines)}Content-Length: {len(body)}\r\n\r\n"
        self._request = head.encode() + body

    def configure(self, plugins: Sequence[str]) -> None:
        """Write the configuration, with `plugins` in the chain, below those that count and above the routing.

        Each is a name, which its settings may follow.
        """
        upstream = self._listening.getsockname()[1]
        self._configuration.write_text(_configuration(self._folder, self._store, self._port, upstream, plugins))

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run the worker, and connect to it."""
        program = [sys.executable, "-P", str(QUIET_WORKER), str(self._configuration), str(self._port)]
        counted = [
            *("valgrind", "--tool=callgrind", "--instr-atstart=no"),
            f"--callgrind-out-file={self._folder / 'counted'}",
        ]
        with (self._folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [*counted, *program],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=os.environ | {"PYTHONHASHSEED": "0"},
            )
        with process, self._listening:
            try:
                if process.stdout is None or process.stdout.readline() != "ready\n":
                    raise RuntimeError((self._folder / "log").read_text()[-2000:])
                self._process = process
                with socket.create_connection(("127.0.0.1", self._port), PATIENCE_S) as self._caller:
                    yield
            finally:
                process.terminate()
                if self._upstream is not None:
                    self._upstream.close()

    def burst(self) -> None:
        """Send a request and receive its answer, which the upstream sends in one write."""
        self._caller.sendall(self._request)
        events = b"".join(chunk(EVENT % (b"word %d" % number)) for number in range(BURST))
        self._receive_request().sendall(HEAD + events + END)
        self._receive_until(END_OF_ANSWER)

    def ask(self, events: int = 1) -> None:
        """Send a request and receive its answer, of so many events before the last."""
        self._caller.sendall(self._request)
        upstream = self._receive_request()
        for number in range(events):
            event = EVENT % (b"word %d" % number)
            upstream.sendall((b"" if number else HEAD) + chunk(event))
            self._receive_until(chunk(event))
        upstream.sendall(END)
        self._receive_until(END_OF_ANSWER)

    def count(self, work: Callable[[], None]) -> int:
        """Return the instructions of the worker during `work`."""
        self._control("--zero")
        work()
        self._control("--dump")
        dumped = max(self._folder.glob("counted.*"), key=lambda path: int(path.suffix[1:]))
        total = re.search(r"^totals: (\d+)", dumped.read_text(), re.MULTILINE)
        if total is None:
            raise RuntimeError(f"{dumped} has no total")
        return int(total[1])

    def measure(self) -> Figures:
        """Return the instructions of a request, of an event and of a burst."""
        self.prepare()

        def each(sizes: tuple[int, int], work: Callable[[int], None]) -> int:
            few, many = (min(self.count(partial(work, size)) for _ in range(ROUNDS)) for size in sizes)
            return round((many - few) / (sizes[1] - sizes[0]))

        return {
            "request": each(REQUESTS, partial(repeat, self.ask)),
            "event": each(EVENTS, self.ask),
            "burst": each(REQUESTS, partial(repeat, self.burst)),
        }

    def prepare(self) -> None:
        """Send what comes before the count: requests until all is warm, and then the signal after which timers are slow."""
        for _ in range(WARM):
            self.ask()
            self.burst()
        self._process.send_signal(signal.SIGUSR2)
        time.sleep(SETTLE_S)
        self._control("--instr=on")
        self.ask(EVENTS[0])

    def _receive_request(self) -> socket.socket:
        """Receive a request at the upstream, also on a connection after one that the worker has closed."""
        while True:
            if self._upstream is None:
                self._upstream, _ = self._listening.accept()
                self._upstream.settimeout(PATIENCE_S)
            received = b""
            while piece := self._upstream.recv(65536):
                received += piece
                head, _, body = received.partition(b"\r\n\r\n")
                length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
                if length and len(body) == int(length[1]):
                    return self._upstream
            self._upstream.close()
            self._upstream = None

    def _receive_until(self, end: bytes) -> None:
        received = b""
        while not received.endswith(end):
            piece = self._caller.recv(65536)
            if not piece or (not received and piece.startswith(b"HTTP") and b" 200 " not in piece[:16]):
                raise RuntimeError(f"the answer is not the upstream's: {(received + piece)[-500:]!r}")
            received += piece

    def _command(self, *words: str) -> str:
        command = [sys.executable, "-m", "gateway", *words, "-c", str(self._configuration)]
        return subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout

    def _control(self, option: str) -> None:
        subprocess.run(["callgrind_control", option, str(self._process.pid)], check=True, capture_output=True)


def repeat(ask: Callable[[], None], times: int) -> None:
    """Ask so many times."""
    for _ in range(times):
        ask()


def _configuration(folder: Path, store: str, port: int, upstream: int, plugins: Sequence[str]) -> str:
    uses = []
    for name, _, settings in (plugin.partition(" ") for plugin in (*CHAIN, *plugins, "model-routing")):
        uses.append(f"{{use: '{name}', with: {settings or GENEROUS.get(name, '{}')}}}")
    return f"""
listen: 127.0.0.1:{port}
admin: null
redis: {store}
data: {folder}/data
store: {{timeout: 30, accept_loss: true}}
channels: {{bench: {{base_url: 'http://127.0.0.1:{upstream}/v1', api_key: sk-the-key-of-the-channel-0123456789}}}}
models: {{bench: {{input: 0.5, output: 1.5, max_output_tokens: 4096, channels: [bench]}}}}
groups: {{default: {{}}}}
plugins: [{", ".join(uses)}]
"""


def budget() -> Figures | None:
    """Return the budget of this interpreter, or None where it has none."""
    try:
        from gateway.base.compiled import WHY_PURE
    except ImportError:  # an earlier commit, which is compared
        return None
    if WHY_PURE:
        return None
    return BUDGETS.get((*sys.version_info[:3], bool(sysconfig.get_config_var("Py_ENABLE_SHARED"))))


def exceeded(figures: Figures, allowed: Figures | None) -> list[str]:
    """Return the names of the figures that are above the budget by more than the slack."""
    return [name for name, count in figures.items() if allowed and count > allowed[name] * SLACK]


def table(figures: Figures, allowed: Figures | None) -> str:
    """Return the figures, the budget and their ratio as lines of text."""
    lines = [f"{'':10}{'instructions':>14}{'budget':>14}{'ratio':>8}"]
    for name, count in figures.items():
        judged = f"{allowed[name]:14,}{count / allowed[name]:8.3f}" if allowed else f"{'none':>14}"
        lines.append(f"{name:10}{count:14,}{judged}")
    lines += [f"{name}: more than 5 % above the budget" for name in exceeded(figures, allowed)]
    return "\n".join(lines)


def measure() -> Figures:
    """Return the instructions of a request, of an event and of a burst, of a worker that is started for it."""
    with tempfile.TemporaryDirectory(prefix="instructions") as name:
        folder = Path(name)
        store = EmbeddedStore.start(folder / "store")
        try:
            worker = Worker(folder, store.url)
            with worker.running():
                return worker.measure()
        finally:
            store.stop()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--json", action="store_true", help="print the figures as JSON")
    arguments = options.parse_args()
    if lacking := missing():
        sys.exit(f"this machine lacks {lacking}: apt-get install valgrind")
    figures, allowed = measure(), budget()
    print(json.dumps({"figures": figures, "budget": allowed}) if arguments.json else table(figures, allowed))
    sys.exit(bool(exceeded(figures, allowed)))


if __name__ == "__main__":
    main()
