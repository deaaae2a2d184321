"""The parent process: the embedded store, the workers, the sink of the usage log, the demo; and the signals.

1. Nothing is forked from a process that has threads or a running event loop.
2. Every child ends with its parent, however the parent ends.
3. The sockets stay the parent's: a worker that died is followed by another on the same socket, and who had connected
   meanwhile is served.
4. The order of a stop: workers drain first, then the sink, which has their last records, then the demo, the store last.
"""

from __future__ import annotations

import ctypes
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
import structlog

from gateway.config.schema import host_port
from gateway.errors import GatewayError, Misconfigured, cannot_listen
from gateway.runtime import logs

log = structlog.get_logger("gateway.runtime.supervisor")

LONGEST_BACK_OFF_S: Final = 10.0
LONGEST_WAIT_S: Final = 0.2
"""How long a signal or the death of a child may go unnoticed."""

PR_SET_PDEATHSIG: Final = 1
READY: Final = b"+"

Ready = Callable[[], None]

Work = Callable[[Ready], None]
"""What a child does; it calls its argument once it is ready."""


class ChildProcess(msgspec.Struct):
    """A process that is kept alive. `failures` in a row make the next start wait longer."""

    kind: str
    work: Work
    number: int = 0
    pid: int = 0
    started: float = 0.0
    restart_at: float = 0.0
    failures: int = 0

    @property
    def name(self) -> str:
        """What it is called in logs."""
        return f"{self.kind} {self.number}" if self.number else self.kind


class Supervisor:
    """Starts children, starts them again when they die, and stops them kind by kind, the last kind first."""

    def __init__(self, died: Callable[[str], None] = lambda kind: None) -> None:
        self._died = died
        self.children: list[ChildProcess] = []
        self._stopping = False

    def add(self, kind: str, work: Work, number: int = 0) -> None:
        """Start a child and wait until it is ready. Raises the `GatewayError` that ended it instead."""
        child = ChildProcess(kind, work, number)
        self.children.append(child)
        reason = self._start(child)
        if reason is not None:
            _, status = os.waitpid(child.pid, 0)
            child.pid = 0
            error = Misconfigured if os.waitstatus_to_exitcode(status) == 2 else GatewayError
            raise error(reason or f"the {child.name} did not start; its reason is above")

    def heed(self) -> None:
        """From now on SIGTERM and SIGINT end `watch`, also one that is not begun: to be called before anybody is told of it."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def watch(self, also: Callable[[], None] = lambda: None) -> None:
        """Keep the children alive until a signal that is heeded, and do `also` every time they were looked at."""
        while not self._stopping:
            self._reap()
            self._restart_due()
            also()
            time.sleep(LONGEST_WAIT_S)

    def signal(self, kind: str, number: int) -> None:
        """Send a signal to all children of a kind."""
        for child in self.children:
            if child.kind == kind and child.pid:
                _signal(child.pid, number)

    def stop(self, *, timeout_s: float) -> None:
        """Stop all children; what does not end in time is killed. Those of one kind stop side by side."""
        for _, kind in groupby(reversed(self.children), key=lambda child: child.kind):
            alive = [child for child in kind if child.pid]
            for child in alive:
                _signal(child.pid, signal.SIGTERM)
            deadline = time.monotonic() + timeout_s
            for child in alive:
                _wait(child, deadline)

    def _start(self, child: ChildProcess) -> str | None:
        """None once the child is ready; else the reason that it gave, which may be empty."""
        reading, writing = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        gc.collect()
        gc.freeze()  # a collector that looks at what was there before the fork copies the memory of all that
        parent = os.getpid()
        child.started = time.monotonic()
        child.pid = os.fork()
        if child.pid == 0:
            os.close(reading)
            _become(child, parent, writing)
        os.close(writing)
        told = b""
        with os.fdopen(reading, "rb") as answer:
            while not told and not self._stopping:
                if select.select([answer], [], [], LONGEST_WAIT_S)[0]:
                    told = answer.read() or b"\n"
        return None if told == READY else told.decode(errors="replace").strip()

    def _reap(self) -> None:
        for child in self.children:
            if child.pid and os.waitpid(child.pid, os.WNOHANG)[0]:
                child.pid = 0
                lived = time.monotonic() - child.started
                child.failures = child.failures + 1 if lived < LONGEST_BACK_OFF_S else 1
                wait = min(LONGEST_BACK_OFF_S, 0.05 * 2 ** (child.failures - 1))
                child.restart_at = time.monotonic() + wait
                self._died(child.kind)
                log.error("child_died", child=child.name, lived_s=round(lived, 1), restart_in_s=round(wait, 2))

    def _restart_due(self) -> None:
        for child in self.children:
            if not child.pid and time.monotonic() >= child.restart_at:
                reason = self._start(child)
                if reason:
                    log.error("child_did_not_start", child=child.name, reason=reason)

    def _stop(self, *_: object) -> None:
        self._stopping = True


def listeners(address: str, count: int) -> list[socket.socket]:
    """One bound and listening socket for each worker. Raises `Misconfigured` when the address is taken."""
    host, port = host_port(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sockets = []
    try:
        with socket.socket(family) as probe:  # SO_REUSEPORT would let a second gateway share the port unnoticed
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
            port = probe.getsockname()[1]
        for _ in range(count):
            listener = socket.socket(family)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            listener.bind((host, port))
            listener.listen(4096)
            listener.setblocking(False)
            sockets.append(listener)
    except OSError as error:
        raise Misconfigured(f"{cannot_listen(address, error)}; stop it or change `listen:`") from None
    return sockets


def _become(child: ChildProcess, parent: int, writing: int) -> None:
    """The rest of the child's life; never returns."""
    code = 1
    told = False

    def ready() -> None:
        nonlocal told
        told = True
        os.write(writing, READY)
        os.close(writing)

    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
            if os.getppid() != parent:
                os._exit(0)
        logs.configure()
        child.work(ready)
        code = 0
    except GatewayError as error:
        if told:
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


def _wait(child: ChildProcess, deadline: float) -> None:
    while os.waitpid(child.pid, os.WNOHANG)[0] == 0:
        if time.monotonic() > deadline:
            log.error("child_killed", child=child.name)
            _signal(child.pid, signal.SIGKILL)
            os.waitpid(child.pid, 0)
            break
        time.sleep(0.01)
    child.pid = 0
