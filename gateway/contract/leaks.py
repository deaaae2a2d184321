"""What a plugin shows of what nobody should see: in its `repr`, and in what it logs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import suppress
from typing import Any, Final

import msgspec
import structlog

from gateway.plugin import Plugin

SECRET: Final = re.compile(r"(key|token|secret|password|credential|dsn|url)s?$")
"""Names of settings that are taken to hold a secret where they hold text."""
CANARY: Final = "canary-4711"
SHORTEST: Final = 8
"""Shorter credentials are in many a text by chance."""


class Log:
    """Stands in for `services.log` and keeps every line."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.logger: Any = structlog.wrap_logger(None, processors=[self._keep], wrapper_class=structlog.BoundLogger)

    def _keep(self, _: object, __: str, event: MutableMapping[str, Any]) -> str:
        self.lines.append(repr(dict(event)))
        raise structlog.DropEvent


def shown(plugin: Plugin, lines: list[str], headers: Mapping[str, str]) -> Iterator[str]:
    """What `repr` or a line of the log gives away of settings, and of the headers of requests."""
    for field in msgspec.structs.fields(type(plugin)):
        value = getattr(plugin, field.name)
        if not (isinstance(value, str) and SECRET.search(field.name)):
            continue
        if value and any(value in line for line in lines):
            yield f"the log shows `{field.name}`"
        with suppress(ValueError, TypeError):
            plugin, value = msgspec.structs.replace(plugin, **{field.name: CANARY}), CANARY
        if value and value in repr(plugin):
            yield f"`repr` shows `{field.name}`: define a `__repr__` without it"
    credentials = [value.rpartition(" ")[2] for value in headers.values() if len(value) >= SHORTEST]
    if any(credential in line for credential in credentials for line in (*lines, repr(plugin))):
        yield "the caller's credential is shown: log `exchange.token_id`"
