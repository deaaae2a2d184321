"""A trial of a configuration in a process of its own: a plugin that hangs, exits or crashes there hurts no other process.

Everything that a start does with plugins is done: they are imported and made and, where there is a store, started and stopped.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Final, Self

import msgspec

from gateway import loading
from gateway.alerts.signature import secrets_of
from gateway.chain.chain import Chain
from gateway.chain.entry import Entry
from gateway.chain.failures import error_text
from gateway.chain.order import warnings
from gateway.chain.starting import START_LIMIT_S
from gateway.config.channel import credential_warnings
from gateway.config.schema import Loaded
from gateway.errors import GatewayError, Misconfigured
from gateway.services import Store, services_of
from gateway.tools.exposure import Exposure, exposure_of
from gateway.tools.mistakes import mistakes

KILLED_AFTER_S: Final = 3.0
"""How long after its limit a trial is killed. In that time the plugin that hangs is named."""
POLL_INTERVAL_S: Final = 0.05
PR_SET_PDEATHSIG: Final = 1


class Report(msgspec.Struct, frozen=True):
    """What a trial found: the names of the chain's plugins, warnings, and the bound of every balance."""

    plugins: list[str] = []
    warnings: list[str] = []
    exposure: Exposure | None = None


class _Line(msgspec.Struct, omit_defaults=True):
    """What the process writes: first the plugin at work, as the beginning of an error about it, and then a result."""

    at: str = ""
    error: str = ""
    misconfigured: bool = False
    report: Report | None = None


class Trial:
    """One trial, which begins at once. To be used as a context manager: the process is killed at the end."""

    def __init__(self, loaded: Loaded, url: str | None = None, *, limit_s: float = START_LIMIT_S) -> None:
        """Try `loaded`, with the store at `url`, for `limit_s`."""
        self._limit_s = limit_s
        self._deadline = time.monotonic() + limit_s + KILLED_AFTER_S
        self._written = b""
        self._pipe, writing = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            _run(loaded, url, limit_s, writing, parent)
        os.close(writing)
        os.set_blocking(self._pipe, False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def wait(self) -> Report:
        """Return the report. Raises `Misconfigured`, and `GatewayError` for what may pass."""
        while (report := self.poll()) is None:
            with suppress(InterruptedError):
                select.select([self._pipe], [], [], POLL_INTERVAL_S)
        return report

    def poll(self) -> Report | None:
        """Return the report, or None while the trial runs. Raises what `wait` raises."""
        ended, status = os.waitpid(self._pid, os.WNOHANG)
        self._read()
        if ended:
            self._pid = 0
            return self._result(os.waitstatus_to_exitcode(status))
        if time.monotonic() > self._deadline:
            self.close()
            at = self._lines()[-1].at if self._lines() else ""
            raise GatewayError(f"{at}did not come to an end within {self._limit_s:g} s")
        return None

    def close(self) -> None:
        """Kill the process if it still runs."""
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            self._pid = 0
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1

    def _read(self) -> None:
        with suppress(BlockingIOError):
            while data := os.read(self._pipe, 65536):
                self._written += data

    def _lines(self) -> list[_Line]:
        return [msgspec.json.decode(line, type=_Line) for line in self._written.splitlines()]

    def _result(self, code: int) -> Report:
        self.close()
        lines = self._lines() or [_Line()]
        last = lines[-1]
        if last.report is not None:
            return last.report
        if last.error:
            raise (Misconfigured if last.misconfigured else GatewayError)(last.error)
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        raise Misconfigured(f"{last.at}ended its process with {how}")


def _run(loaded: Loaded, url: str | None, limit_s: float, writing: int, parent: int) -> None:
    """Do the trial in the new process, and end the process. Never returns."""

    def write(line: _Line) -> None:
        with open(writing, "wb", closefd=False) as pipe:
            pipe.write(msgspec.json.encode(line) + b"\n")

    def note(wrong: Callable[[str], Misconfigured], name: str) -> None:
        write(_Line(at=_plain(f"{wrong('')}'{name}' ")))

    def overdue(_: int, __: FrameType | None) -> None:
        raise TimeoutError(f"it takes longer than {limit_s:g} s")

    try:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)
        signal.signal(signal.SIGALRM, overdue)
        signal.setitimer(signal.ITIMER_REAL, limit_s + KILLED_AFTER_S / 3)
        write(_Line(report=_examine(loaded, url, limit_s, note)))
    except GatewayError as error:
        write(_Line(error=_plain(str(error)), misconfigured=isinstance(error, Misconfigured)))
    except BaseException as error:
        write(_Line(error=_plain(f"the trial of the configuration failed: {error_text(error)}")))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _examine(loaded: Loaded, url: str | None, limit_s: float, note: loading.Note) -> Report:
    chain = loading.build(loaded, note=note)
    if loaded.config.alerts is not None:
        secrets_of(loaded.config)
    exposure = exposure_of(loaded.config, chain)
    report = Report(
        [entry.name for entry in chain.entries],
        [*warnings(chain.entries), *mistakes(loaded.config, chain), *credential_warnings(loaded.config.channels)],
        exposure,
    )
    if url is not None:
        asyncio.run(_start_and_stop(loaded, url, chain, limit_s, lambda entry: note(entry.wrong, entry.name)))
    return report


async def _start_and_stop(
    loaded: Loaded, url: str, chain: Chain, limit_s: float, starting: Callable[[Entry], None]
) -> None:
    async with Store.open(loaded.config, url) as store:
        await chain.start(services_of(loaded.config, store), limit_s=limit_s, starting=starting)
        await chain.stop()


def _plain(text: str) -> str:
    """Return text without lone surrogates, which cannot be encoded."""
    return text.encode("utf-8", "backslashreplace").decode()
