"""A trial of a configuration in a process of its own: a plugin that hangs, exits or crashes there hurts no other process.

Everything that a start does with plugins is done: they are imported and made and, where there is a store, started and stopped.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
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
from gateway.tools.forked import Forked, plain, write_line
from gateway.tools.mistakes import mistakes

KILLED_AFTER_S: Final = 3.0
"""How long after its limit a trial is killed. In that time the plugin that hangs is named."""


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
        self._process = Forked(partial(_run, loaded, url, limit_s))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def wait(self) -> Report:
        """Return the report. Raises `Misconfigured`, and `GatewayError` for what may pass."""
        while (report := self.poll()) is None:
            self._process.wait()
        return report

    def poll(self) -> Report | None:
        """Return the report, or None while the trial runs. Raises what `wait` raises."""
        if self._process.has_ended():
            return self._result()
        if time.monotonic() > self._deadline:
            self.close()
            at = self._lines()[-1].at if self._lines() else ""
            raise GatewayError(f"{at}did not come to an end within {self._limit_s:g} s")
        return None

    def close(self) -> None:
        """Kill the process if it still runs."""
        self._process.close()

    def _lines(self) -> list[_Line]:
        return [msgspec.json.decode(line, type=_Line) for line in self._process.written.splitlines()]

    def _result(self) -> Report:
        self.close()
        lines = self._lines() or [_Line()]
        last = lines[-1]
        if last.report is not None:
            return last.report
        if last.error:
            raise (Misconfigured if last.misconfigured else GatewayError)(last.error)
        raise Misconfigured(f"{last.at}ended its process with {self._process.ending}")


def _run(loaded: Loaded, url: str | None, limit_s: float, writing: int) -> None:
    """Do the trial in the new process, and end the process. Never returns."""

    write = partial(write_line, writing)

    def note(wrong: Callable[[str], Misconfigured], name: str) -> None:
        write(_Line(at=plain(f"{wrong('')}'{name}' ")))

    def overdue(_: int, __: FrameType | None) -> None:
        raise TimeoutError(f"it takes longer than {limit_s:g} s")

    try:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGALRM, overdue)
        signal.setitimer(signal.ITIMER_REAL, limit_s + KILLED_AFTER_S / 3)
        write(_Line(report=_examine(loaded, url, limit_s, note)))
    except GatewayError as error:
        write(_Line(error=plain(str(error)), misconfigured=isinstance(error, Misconfigured)))
    except BaseException as error:
        write(_Line(error=plain(f"the trial of the configuration failed: {error_text(error)}")))
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
