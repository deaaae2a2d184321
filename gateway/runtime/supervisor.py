"""The supervisor of the child processes: workers, sink, admin port, portal, ClickHouse copy and demo upstream.

1. Nothing is forked from a process that has threads or a running event loop.
2. Every child ends with its parent, however the parent ends.
3. The parent keeps the listening sockets: the replacement of a worker that died listens on the same socket and serves
   the connections that were opened meanwhile.
4. Children stop in the opposite order of their start: the workers drain first, then the sink writes their last records.
   The caller stops the embedded store after all of them.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import groupby
from typing import Final

import msgspec

from gateway.base.errors import GatewayError, Misconfigured, cannot_listen
from gateway.base.forked import end_with
from gateway.base.log import log
from gateway.config.schema import host_port
from gateway.runtime import logs
from gateway.runtime.process import CUT

MAX_BACKOFF_S: Final = 10.0
POLL_INTERVAL_S: Final = 0.2
"""The longest time until a signal or the death of a child is noticed."""

START_LIMIT_S: Final = 45.0
"""How long a child may take until it is ready: longer than its plugins may."""
MAX_REPORT: Final = 64 * 1024

READY: Final = b"+"

Ready = Callable[[], None]

Work = Callable[[Ready], None]
"""The function that a child runs. It calls its argument once it is ready."""


class ChildProcess(msgspec.Struct):
    """A child that is started again when it dies. The delay before that grows with the `failures` in a row."""

    kind: str
    work: Work
    number: int = 0
    pid: int = 0
    """0 while it does not run."""

    started: float = 0.0
    restart_at: float = 0.0
    failures: int = 0
    pipe: int | None = None
    """Where it reports that it is ready, or why it cannot start; None once it has."""

    reason: str | None = None
    """Why it could not start; None if it could."""

    @property
    def name(self) -> str:
        """The name in logs, such as `worker 2`."""
        return f"{self.kind} {self.number}" if self.number else self.kind


class Supervisor:
    """Starts children, starts them again when they die, and stops them kind by kind, the last kind first."""

    def __init__(
        self, on_death: Callable[[str], None] = lambda kind: None, *, start_limit_s: float = START_LIMIT_S
    ) -> None:
        """Call `on_death` with the kind of each child that dies. Kill one that is not ready within `start_limit_s`."""
        self._on_death = on_death
        self._start_limit_s = start_limit_s
        self.children: list[ChildProcess] = []
        self._stopping = False
        self.cut = False
        """Whether Ctrl-C came while it was stopping already."""

    def add(self, kind: str, work: Work, number: int = 0) -> None:
        """Start a child and wait until it is ready. Raises `GatewayError` with the child's reason when it ends instead."""
        child = ChildProcess(kind, work, number)
        self.children.append(child)
        self._start(child)
        while child.pipe is not None and not self._stopping:
            self._take_report(child, POLL_INTERVAL_S)
        if child.reason is not None:
            _, status = os.waitpid(child.pid, 0)
            child.pid = 0
            error = Misconfigured if os.waitstatus_to_exitcode(status) == 2 else GatewayError
            raise error(child.reason or f"the {child.name} did not start; its reason is above")

    def handle_signals(self) -> None:
        """End `watch` on SIGTERM and SIGINT, also when they come before it begins.

        To be called before anything reports that the gateway is ready: from then on a signal may come.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def ignore_signals(self) -> None:
        """Ignore further signals, so that they do not change the exit code: Python restores their default when it ends."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)

    def watch(self, on_tick: Callable[[], None] = lambda: None) -> None:
        """Keep the children running until SIGTERM or SIGINT. Call `on_tick` after each look at them."""
        while not self._stopping:
            self._reap()
            self._restart_due()
            on_tick()
            time.sleep(POLL_INTERVAL_S)

    def signal(self, kind: str, number: int) -> None:
        """Send a signal to all children of a kind."""
        for child in self.children:
            if child.kind == kind and child.pid:
                _signal(child.pid, number)

    def stop(self, *, timeout_s: float, on_wait: Callable[[], None] = lambda: None) -> None:
        """Stop all children, the children of one kind at the same time. Kill a child that does not end within `timeout_s`.

        Call `on_wait` again and again while one of them has not ended.
        """
        for _, kind in groupby(reversed(self.children), key=lambda child: child.kind):
            running = [child for child in kind if child.pid]
            for child in running:
                _signal(child.pid, signal.SIGTERM)
            deadline = time.monotonic() + timeout_s
            for child in running:
                _wait(child, deadline, on_wait)

    def _start(self, child: ChildProcess) -> None:
        reading, writing = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        gc.collect()
        gc.freeze()  # a collection in the child would write to, and so copy, every page of objects made before the fork
        parent = os.getpid()
        child.started = time.monotonic()
        child.pid = os.fork()
        if child.pid == 0:
            os.close(reading)
            _run_child(child, parent, writing)
        os.close(writing)
        child.pipe, child.reason = reading, None

    def _take_report(self, child: ChildProcess, wait_s: float) -> None:
        """Read the report of a starting child, if there is one within `wait_s`. Kill one that takes too long."""
        if child.pipe is None:
            return
        if select.select([child.pipe], [], [], wait_s)[0]:
            report = os.read(child.pipe, MAX_REPORT)
            child.reason = None if report == READY else report.decode(errors="replace").strip()
        elif time.monotonic() - child.started > self._start_limit_s:
            _signal(child.pid, signal.SIGKILL)
            child.reason = (
                f"the {child.name} was not ready within {self._start_limit_s:g} s: does a plugin's start hang?"
            )
        else:
            return
        os.close(child.pipe)
        child.pipe = None

    def _reap(self) -> None:
        for child in self.children:
            self._take_report(child, 0)
            if child.pid and os.waitpid(child.pid, os.WNOHANG)[0]:
                self._take_report(child, 0)
                if child.reason:
                    log.error("child_did_not_start", child=child.name, reason=child.reason)
                child.pid = 0
                lived_s = time.monotonic() - child.started
                child.failures = child.failures + 1 if lived_s < MAX_BACKOFF_S else 1
                backoff_s = min(MAX_BACKOFF_S, 0.05 * 2 ** (child.failures - 1))
                child.restart_at = time.monotonic() + backoff_s
                self._on_death(child.kind)
                log.error("child_died", child=child.name, lived_s=round(lived_s, 1), restart_in_s=round(backoff_s, 2))

    def _restart_due(self) -> None:
        for child in self.children:
            if not child.pid and time.monotonic() >= child.restart_at:
                self._start(child)

    def _stop(self, number: int, _: object) -> None:
        self.cut |= self._stopping and number == signal.SIGINT
        self._stopping = True


def open_listeners(address: str, count: int) -> list[socket.socket]:
    """Return one listening socket for each of `count` workers. Raises `Misconfigured` when the address is taken."""
    host, port = host_port(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sockets = []
    try:
        with socket.socket(family) as probe:  # with SO_REUSEPORT alone, a second gateway could share the port unnoticed
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
            port = probe.getsockname()[1]
        for _ in range(count):
            listener = socket.create_server(
                (host, port), family=family, backlog=4096, reuse_port=True, dualstack_ipv6=family == socket.AF_INET6
            )
            listener.setblocking(False)
            sockets.append(listener)
    except OSError as error:
        raise Misconfigured(f"{cannot_listen(address, error)}; stop it or change `listen:`") from None
    return sockets


def _run_child(child: ChildProcess, parent: int, writing: int) -> None:
    """Run the child's work in the new process, and end the process. Never returns.

    `writing` is the pipe to the parent: READY goes there, or the reason why the child cannot start.
    """
    code = 1
    reported = False

    def ready() -> None:
        nonlocal reported
        reported = True
        os.write(writing, READY)
        os.close(writing)

    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(CUT, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        end_with(parent, signal.SIGTERM)
        logs.configure()
        child.work(ready)
        code = 0
    except GatewayError as error:
        if reported:
            log.error("child_failed", child=child.name, reason=str(error))
        else:
            os.write(writing, str(error).encode())
        code = 2 if isinstance(error, Misconfigured) else 1
    except BaseException:
        log.exception("child_failed", child=child.name)
    finally:
        sys.stderr.flush()
        os._exit(code)


def _signal(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _wait(child: ChildProcess, deadline: float, on_wait: Callable[[], None]) -> None:
    while os.waitpid(child.pid, os.WNOHANG)[0] == 0:
        on_wait()
        if time.monotonic() > deadline:
            log.error("child_killed", child=child.name)
            _signal(child.pid, signal.SIGKILL)
            os.waitpid(child.pid, 0)
            break
        time.sleep(0.01)
    child.pid = 0
