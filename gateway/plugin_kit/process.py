"""Process for the contract tests of a plugin, with a time limit: they end also where the plugin blocks, exits or crashes."""

from __future__ import annotations

import asyncio
import faulthandler
import os
import signal
import sys
import tempfile
import time
from collections.abc import Coroutine, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final, NoReturn

import msgspec

from gateway import plugin_kit
from gateway.base.errors import GatewayError, Misconfigured
from gateway.base.forked import Forked, plain, write_line
from gateway.chain.entry import describe_error
from gateway.plugin_kit.finding import Finding
from gateway.store.embedded import EmbeddedStore

LIMIT_S: Final = 60.0
"""How long all checks of a plugin may take together."""
STACKS_BEFORE_S: Final = 1.0
"""How long before the limit Python writes to the standard error which lines its threads are at."""
SLOW_S: Final = 0.5
"""How long a hook may block until asyncio's debug mode notes it: far longer than a busy machine delays a good one."""
CHECK: Final = "process"
"""The check that fails where the others do not come to an end."""


class _Result(msgspec.Struct, omit_defaults=True):
    """What the process writes."""

    findings: list[Finding] = []
    error: str = ""
    misconfigured: bool = False


def check(
    use: str, settings: Mapping[str, object], *, headers: Mapping[str, str], body: Mapping[str, object]
) -> list[Finding]:
    """Return the findings of `plugin_kit.check`, or one of the check `process` that says why there are none, within `LIMIT_S`.

    What the plugin has started is killed at the end. Raises `Misconfigured` for settings that it does not accept, and
    `GatewayError` where `use` names no plugin.
    """
    with tempfile.TemporaryDirectory(prefix="gateway-check-") as folder:
        store = EmbeddedStore.start(Path(folder) / "store")

        def work(writing: int) -> None:
            tempfile.tempdir = folder
            _run(writing, plugin_kit.check(use, settings, headers=headers, body=body, url=store.url))

        try:
            # Ctrl-C reaches only this process: in that one, a plugin has raised it
            with closing(Forked(work, session=True)) as process:
                result = _result_of(process)
        finally:
            store.stop()
    if result.error:
        raise (Misconfigured if result.misconfigured else GatewayError)(result.error)
    return result.findings


def _result_of(process: Forked) -> _Result:
    """Wait for the result, or return a finding where there is none."""
    deadline = time.monotonic() + LIMIT_S
    while not process.has_ended():
        if time.monotonic() > deadline:
            return _failed(f"did not end within {LIMIT_S:g} s: the standard error has the lines that it was at")
        process.wait()
    if line := process.written.partition(b"\n")[0]:
        return msgspec.json.decode(line, type=_Result)
    return _failed(f"ended its process with {process.ending}")


def _run(writing: int, checking: Coroutine[Any, Any, list[Finding]]) -> NoReturn:
    """Run the tests in the new process, write the result, and end the process at once: what the plugin has left might keep it."""

    async def checked() -> NoReturn:
        asyncio.get_running_loop().slow_callback_duration = SLOW_S
        try:
            findings = await checking
            result = _Result([Finding(each.check, each.passed, plain(each.text)) for each in findings])
        except (ValueError, GatewayError) as error:
            result = _Result(error=plain(str(error)), misconfigured=isinstance(error, Misconfigured))
        _end(writing, result)

    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        faulthandler.dump_traceback_later(max(0.1, LIMIT_S - STACKS_BEFORE_S), file=2)
        asyncio.run(checked(), debug=True)
    except BaseException as error:
        _end(writing, _failed(f"ends with {describe_error(error)}"))
    finally:
        os._exit(1)


def _end(writing: int, result: _Result) -> NoReturn:
    try:
        write_line(writing, result)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(0)


def _failed(text: str) -> _Result:
    return _Result([Finding(CHECK, False, plain(text))])
