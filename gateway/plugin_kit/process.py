"""A process of its own for the contract tests: they end also where the plugin blocks, exits, crashes or leaves threads behind."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path
from traceback import walk_stack, walk_tb
from types import FrameType
from typing import Final, NoReturn

import msgspec

from gateway import plugin_kit
from gateway.base.errors import GatewayError, Misconfigured
from gateway.base.forked import Forked, plain, write_line
from gateway.chain.entry import error_text
from gateway.plugin_kit.contained import Frames, place_in, waiting
from gateway.plugin_kit.finding import Finding
from gateway.store.embedded import EmbeddedStore

LIMIT_S: Final = 60.0
"""How long all checks of a plugin may take together."""
KILLED_AFTER_S: Final = 3.0
"""How long after the limit the process is killed. In that time it says what the plugin does."""
CHECK: Final = "process"
"""The check that fails where the others do not come to an end."""


class _Result(msgspec.Struct, omit_defaults=True):
    """What the process writes."""

    findings: list[Finding] = []
    error: str = ""
    misconfigured: bool = False


def check(use: str, settings: Mapping[str, object], *, headers: Mapping[str, str]) -> list[Finding]:
    """Return the findings of `contract.check`, or one of the check `process` that says why there are none, within `LIMIT_S`.

    What the plugin has started is killed at the end. Raises `Misconfigured` for settings that it does not accept, and
    `GatewayError` where `use` names no plugin.
    """
    with tempfile.TemporaryDirectory(prefix="gateway-check-") as folder:
        store = EmbeddedStore.start(Path(folder) / "store")

        def work(writing: int) -> None:
            tempfile.tempdir = folder
            _Run(writing).run(use, settings, headers, store.url)

        try:
            with closing(
                Forked(work, session=True)
            ) as process:  # Ctrl-C reaches only this one: there, a plugin has raised it
                result = _result_of(process)
        finally:
            store.stop()
    if result.error:
        raise (Misconfigured if result.misconfigured else GatewayError)(result.error)
    return result.findings


def _result_of(process: Forked) -> _Result:
    """Wait for the result, or return a finding where there is none."""
    deadline = time.monotonic() + LIMIT_S + KILLED_AFTER_S
    while not process.has_ended():
        if time.monotonic() > deadline:
            return _failed(f"did not end within {LIMIT_S:g} s, and is busy with what cannot be interrupted")
        process.wait()
    if line := process.written.partition(b"\n")[0]:
        return msgspec.json.decode(line, type=_Result)
    return _failed(f"ended its process with {process.ending}")


class _Run:
    """The contract tests as the new process runs them."""

    def __init__(self, writing: int) -> None:
        self._writing = writing

    def run(self, use: str, settings: Mapping[str, object], headers: Mapping[str, str], url: str) -> NoReturn:
        """Run them, and end the process."""
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.signal(signal.SIGALRM, self._overdue)
            signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
            asyncio.run(self._check(use, settings, headers, url))
        except BaseException as error:
            _, at = place_in(walk_tb(error.__traceback__))
            self._end(_failed(f"ends with {error_text(error).removesuffix(': ')}{f' ({at})' if at else ''}"))
        finally:
            os._exit(1)

    async def _check(self, use: str, settings: Mapping[str, object], headers: Mapping[str, str], url: str) -> None:
        try:
            findings = await plugin_kit.check(use, settings, headers=headers, url=url)
            result = _Result([Finding(each.check, each.passed, plain(each.text)) for each in findings])
        except (ValueError, GatewayError) as error:
            result = _Result(error=plain(str(error)), misconfigured=isinstance(error, Misconfigured))
        self._end(result)

    def _overdue(self, _: int, frame: FrameType | None) -> None:
        for frames in _stacks(frame):
            function, at = place_in(frames)
            if at:
                self._end(_failed(f"did not end within {LIMIT_S:g} s: `{function}` still runs ({at})"))
        self._end(_failed(f"did not end within {LIMIT_S:g} s"))

    def _end(self, result: _Result) -> NoReturn:
        """Write the result, and end the process at once: what the plugin has left would keep it from ending."""
        try:
            signal.setitimer(signal.ITIMER_REAL, 0)
            write_line(self._writing, result)
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(0)


def _failed(text: str) -> _Result:
    return _Result([Finding(CHECK, False, plain(text))])


def _stacks(frame: FrameType | None) -> Iterator[Frames]:
    """Yield what runs now, and what each task waits for."""
    running = list(walk_stack(frame))
    codes = [each.f_code for each, _ in running]
    yield reversed(running[: codes.index(_Run.run.__code__)])
    with suppress(RuntimeError):  # no event loop
        for task in asyncio.all_tasks():
            yield waiting(task.get_coro())
