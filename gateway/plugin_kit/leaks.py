"""Output of a plugin: the secrets in its `repr`, its log and what it prints."""

from __future__ import annotations

import io
import logging
import re
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import ExitStack, redirect_stderr, redirect_stdout, suppress
from typing import Any, Final, Self
from urllib.parse import parse_qsl, urlsplit

import msgspec
import structlog

from gateway.chain.plugin import Plugin

SECRET: Final = re.compile(r"(key|token|secret|password|credential|dsn|url)s?$")
"""Names of settings whose text is taken for a secret."""
ADDRESS: Final = re.compile(r"(dsn|url)s?$")
"""Those of which only the credentials within are secret."""
CANARY: Final = "canary-4711"
MIN_CREDENTIAL: Final = 8
"""Characters. Shorter header values are not searched for: many texts contain them by chance."""


def log_to(lines: list[str]) -> Any:
    """Return a log for `services.log` that keeps every line in `lines`."""

    def keep(_: object, __: str, event: MutableMapping[str, Any]) -> str:
        lines.append(repr(dict(event)))
        raise structlog.DropEvent

    return structlog.wrap_logger(None, processors=[keep], wrapper_class=structlog.BoundLogger)


class Printed(logging.Handler):
    """A context manager that keeps what is printed, or logged with Python's own module, in `lines`."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__()
        self.lines = lines
        self._text = io.StringIO()

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line of a log, such as of asyncio's debug mode on a hook that blocks."""
        self._text.write(f"{self.format(record)}\n")

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

    def show(self) -> None:
        """Print to the standard error what was printed, since an author may look for it."""
        sys.stderr.write(self._text.getvalue())


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
