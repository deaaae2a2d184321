"""The contract tests in a process of their own: they end also where the plugin blocks, exits, crashes or leaves threads behind."""

from __future__ import annotations

import asyncio
import ctypes
import os
import select
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from traceback import walk_stack, walk_tb
from types import FrameType
from typing import Final, NoReturn, Self

import msgspec

from gateway import contract
from gateway.chain.failures import error_text
from gateway.contract.contained import Frames, place_in, waiting
from gateway.contract.finding import Finding
from gateway.errors import GatewayError, Misconfigured
from gateway.store.client.embedded import EmbeddedStore

LIMIT_S: Final = 60.0
"""How long all checks of a plugin may take together."""
KILLED_AFTER_S: Final = 3.0
"""How long after the limit the process is killed. In that time it says what the plugin does."""
POLL_INTERVAL_S: Final = 0.05
PR_SET_PDEATHSIG: Final = 1
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
        try:
            with _Process(use, settings, headers, folder, store.url) as process:
                result = process.wait()
        finally:
            store.stop()
    if result.error:
        raise (Misconfigured if result.misconfigured else GatewayError)(result.error)
    return result.findings


class _Process:
    """A process that runs the contract tests, with its files in `folder`. It is killed at the end."""

    def __init__(
        self, use: str, settings: Mapping[str, object], headers: Mapping[str, str], folder: str, url: str
    ) -> None:
        self._deadline = time.monotonic() + LIMIT_S + KILLED_AFTER_S
        self._written = b""
        self._status: int | None = None
        self._pipe, writing = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            tempfile.tempdir = folder
            _Run(writing).run(use, settings, headers, url, parent)
        os.close(writing)
        os.set_blocking(self._pipe, False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._pipe)
        with suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)
        if self._status is None:
            os.kill(self._pid, signal.SIGKILL)  # it may have no group yet
            os.waitpid(self._pid, 0)

    def wait(self) -> _Result:
        """Return the result, or a finding where there is none."""
        while self._status is None:
            if time.monotonic() > self._deadline:
                return _failed(f"did not end within {LIMIT_S:g} s, and is busy with what cannot be interrupted")
            select.select([self._pipe], [], [], POLL_INTERVAL_S)
            self._read()
            ended, status = os.waitpid(self._pid, os.WNOHANG)
            self._status = os.waitstatus_to_exitcode(status) if ended else None
        self._read()
        if line := self._written.partition(b"\n")[0]:
            return msgspec.json.decode(line, type=_Result)
        code = self._status
        return _failed(
            f"ended its process with {f'signal {signal.Signals(-code).name}' if code < 0 else f'exit code {code}'}"
        )

    def _read(self) -> None:
        with suppress(BlockingIOError):
            while data := os.read(self._pipe, 65536):
                self._written += data


class _Run:
    """The contract tests as the new process runs them."""

    def __init__(self, writing: int) -> None:
        self._writing = writing

    def run(
        self, use: str, settings: Mapping[str, object], headers: Mapping[str, str], url: str, parent: int
    ) -> NoReturn:
        """Run them, and end the process."""
        try:
            os.setsid()  # Ctrl-C reaches only the command: here, a plugin has raised what looks like it
            signal.signal(signal.SIGINT, signal.default_int_handler)
            if sys.platform == "linux":
                ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
                if os.getppid() != parent:
                    os._exit(1)
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
            findings = await contract.check(use, settings, headers=headers, url=url)
            result = _Result([Finding(each.check, each.passed, _plain(each.text)) for each in findings])
        except (ValueError, GatewayError) as error:
            result = _Result(error=_plain(str(error)), misconfigured=isinstance(error, Misconfigured))
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
            with open(self._writing, "wb", closefd=False) as pipe:
                pipe.write(msgspec.json.encode(result) + b"\n")
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(0)


def _failed(text: str) -> _Result:
    return _Result([Finding(CHECK, False, _plain(text))])


def _plain(text: str) -> str:
    """Return text without lone surrogates, which cannot be encoded."""
    return text.encode("utf-8", "backslashreplace").decode()


def _stacks(frame: FrameType | None) -> Iterator[Frames]:
    """Yield what runs now, and what each task waits for."""
    running = list(walk_stack(frame))
    codes = [each.f_code for each, _ in running]
    yield reversed(running[: codes.index(_Run.run.__code__)])
    with suppress(RuntimeError):  # no event loop
        for task in asyncio.all_tasks():
            yield waiting(task.get_coro())
