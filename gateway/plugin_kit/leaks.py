"""Output of a plugin: the secrets in its `repr`, its log and what it prints, and what asyncio's debug mode says of it."""

from __future__ import annotations

import asyncio
import gc
import io
import logging
import re
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from contextlib import ExitStack, redirect_stderr, redirect_stdout, suppress
from typing import Any, Final, Self
from urllib.parse import parse_qsl, urlsplit

import msgspec
import structlog

from gateway.chain.plugin import Plugin
from gateway.plugin_kit.finding import HOOK

SECRET: Final = re.compile(r"(key|token|secret|password|credential|dsn|url)s?$")
"""Names of settings whose text is taken for a secret."""
ADDRESS: Final = re.compile(r"(dsn|url)s?$")
"""Those of which only the credentials within are secret."""
CANARY: Final = "canary-4711"
MIN_CREDENTIAL: Final = 8
"""Characters. Shorter header values are not searched for: many texts contain them by chance."""

SLOW_S: Final = 0.5
"""How long a hook may block the event loop until asyncio logs it: far longer than a busy machine delays a good one."""
SLOW: Final = re.compile(rf"name='{HOOK}(.+?)'.* took ([0-9.]+) seconds")
NOT_AWAITED: Final = re.compile(r"(coroutine '.+' was never awaited)(?:.*  File \"(.+?)\", line (\d+))?", re.DOTALL)


class CapturedLog:
    """A log for `services.log` that keeps every line in `lines`."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.logger: Any = structlog.wrap_logger(None, processors=[self._capture], wrapper_class=structlog.BoundLogger)

    def _capture(self, _: object, __: str, event: MutableMapping[str, Any]) -> str:
        self.lines.append(repr(dict(event)))
        raise structlog.DropEvent


class DebugMode(logging.Handler):
    """A context manager that turns on asyncio's debug mode. Other warnings than its own are given when it ends."""

    def __init__(self) -> None:
        super().__init__()
        self.slow: list[str] = []
        """A line for each hook that blocks the event loop."""
        self.not_awaited: list[str] = []
        """A line for each coroutine that was never awaited, with the place where it was made."""
        self._warnings = warnings.catch_warnings(record=True)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line of asyncio's log that is about a hook."""
        if found := SLOW.search(record.getMessage()):
            self.slow.append(f"`{found[1]}` blocks the event loop for {found[2]} s: use `await asyncio.to_thread(...)`")

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._before = self._loop.get_debug(), self._loop.slow_callback_duration
        self._loop.slow_callback_duration = SLOW_S
        self._loop.set_debug(True)
        caught = self._warnings.__enter__()
        self._caught = [] if caught is None else caught
        warnings.simplefilter("always", RuntimeWarning)
        logging.getLogger("asyncio").addHandler(self)
        return self

    async def __aexit__(self, *_: object) -> None:
        gc.collect()
        debug, slow_s = self._before
        self._loop.set_debug(debug)
        await asyncio.sleep(0)  # ends the step of the event loop that is timed
        self._loop.slow_callback_duration = slow_s
        logging.getLogger("asyncio").removeHandler(self)
        self._warnings.__exit__(None, None, None)
        for each in self._caught:
            if found := NOT_AWAITED.search(str(each.message)):
                place = f" ({found[2]}, line {found[3]})" if found[2] else ""
                self.not_awaited.append(f"{found[1]}{place}: write `await` before it")
            else:
                warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)


class Printed(logging.Handler):
    """A context manager that keeps what is printed, or logged with Python's own module, in `lines`."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__()
        self.lines = lines
        self._text = io.StringIO()

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line of a log."""
        self.lines.append(self.format(record))

    def __enter__(self) -> Self:
        self._redirected = ExitStack()
        self._redirected.enter_context(redirect_stdout(self._text))
        self._redirected.enter_context(redirect_stderr(self._text))
        logging.getLogger().addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger().removeHandler(self)
        self._redirected.close()
        self.lines += self._text.getvalue().splitlines()

    def show(self, notes: Iterable[str]) -> None:
        """Print to the standard error what was printed, since an author may look for it, and notes."""
        sys.stderr.write(self._text.getvalue())
        for note in dict.fromkeys(notes):
            sys.stderr.write(f"note: {note}\n")


def _secret_of(name: str, value: str) -> str:
    """Return the secret part of a setting: of an address its password, or the user or a parameter that stands for one."""
    if not ADDRESS.search(name) or "://" not in value:
        return value
    address = urlsplit(value)
    parameters = (text for key, text in parse_qsl(address.query) if SECRET.search(key))
    return address.password or address.username or next(parameters, "")


def leaked(plugin: Plugin, lines: list[str], headers: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for each secret setting or request header that the plugin's `repr` or a line of its log shows."""
    for field in msgspec.structs.fields(type(plugin)):
        value = getattr(plugin, field.name)
        if not (isinstance(value, str) and SECRET.search(field.name)):
            continue
        secret = _secret_of(field.name, value)
        if secret and any(secret in line for line in lines):
            yield f"the log shows `{field.name}`"
        if secret or not ADDRESS.search(field.name):
            with suppress(ValueError, TypeError):
                canary = value.replace(secret, CANARY) if secret else CANARY
                plugin, secret = msgspec.structs.replace(plugin, **{field.name: canary}), CANARY
        if secret and secret in repr(plugin):
            yield f"`repr` shows `{field.name}`: define a `__repr__` without it"
    credentials = [value.rpartition(" ")[2] for value in headers.values() if len(value) >= MIN_CREDENTIAL]
    if any(credential in line for credential in credentials for line in (*lines, repr(plugin))):
        yield "the log, the output or `repr` shows the caller's credential: log `exchange.token_id` instead"
