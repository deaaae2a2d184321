"""What a plugin has called again and again: each function is called once here, and watched as a hook is."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from gateway.chain.failures import PLUGIN_ERRORS, describe_error
from gateway.contract.blocking import Blocking
from gateway.contract.contained import Ended, Overdue, contained
from gateway.contract.words import an
from gateway.services import Services

LIMIT_S: Final = 2.0
MISTAKES: Final = (TypeError, AttributeError, NameError, LookupError)
"""What is a mistake wherever it runs. What else a function raises may be the place: there is no network in a test."""

Repeated = Callable[[], Awaitable[None]]


class Background:
    """The functions that a plugin gave to `every`."""

    def __init__(self) -> None:
        self.functions: list[Repeated] = []

    def watch(self, services: Services) -> None:
        """Note what is given to `every` of these services, too."""
        every = services.every

        def noted(seconds: float, function: Repeated) -> None:
            every(seconds, function)
            self.functions.append(function)

        services.every = noted  # type: ignore[method-assign]

    async def problems(self, blocking: Blocking) -> list[str]:
        """Call each function once. Return what is wrong with it, and what `blocking` sees in it."""
        found = []
        for function in self.functions:
            name, place = described(function)
            try:
                with blocking.of(function, f"`{name}`, which `every` calls,"):
                    returned = await contained(_called(function), LIMIT_S)
                if returned:
                    found.append(f"`{name}`, which `every` calls, returns {returned}: write `async def`{place}")
            except MISTAKES as error:
                found.append(f"`{name}`, which `every` calls, raised {describe_error(error)}")
            except Ended as error:
                if not isinstance(error, Overdue) or error.goes_on:
                    at = f" ({error.at})" if error.at else place
                    found.append(f"`{name}`, which `every` calls, {error}{at}")
            except PLUGIN_ERRORS:
                continue
        return found + blocking.take()


async def _called(function: Repeated) -> str:
    """Call a function, and wait for it. Return what it returned, in words, where that cannot be waited for."""
    made: Any = function()
    if not inspect.isawaitable(made):
        return an(made)
    await made
    return ""


def described(function: Any) -> tuple[str, str]:
    """Return the name of a function, and its file and line in brackets; empty where it has none."""
    while isinstance(function, partial):
        function = function.func
    code = getattr(inspect.unwrap(function), "__code__", None)
    name = str(getattr(function, "__name__", type(function).__name__))
    return name, "" if code is None else f" ({code.co_filename}, line {code.co_firstlineno})"
