"""Whether another upstream is called after one that failed: each plugin may prevent it, and what goes wrong is logged."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Literal

import pytest
import structlog

from gateway import Exchange, Plugin, Refused
from gateway.base.errors import StoreAway
from gateway.chain.end_hooks import may_fail_over
from gateway.chain.entry import Entry
from gateway.testing import exchange

REFUSED = Refused(402, "insufficient_balance", "Top up.")
AWAY = StoreAway("the store did not answer in time")


class Decides(Plugin):
    calls: list[str]
    name: str
    error: BaseException | None = None

    async def on_failover(self, exchange: Exchange) -> None:
        self.calls.append(self.name)
        if self.error is not None:
            raise self.error


async def asked(*plugins: Decides, on_error: Literal["refuse", "ignore"] = "refuse") -> tuple[bool, list[Any]]:
    entries = [Entry(plugin.name, plugin, on_error) for plugin in plugins]
    with structlog.testing.capture_logs() as logs:
        return await may_fail_over(exchange(), entries), [(line["event"], line["plugin"]) for line in logs]


async def test_all_plugins_are_asked_in_order() -> None:
    calls: list[str] = []
    assert await asked(Decides(calls=calls, name="a"), Decides(calls=calls, name="b")) == (True, [])
    assert calls == ["a", "b"]


@pytest.mark.parametrize(
    ("error", "event"),
    [
        (REFUSED, "failover_refused"),
        (AWAY, "failover_refused"),
        (RuntimeError("a bug"), "plugin_failed"),
        (SystemExit(3), "plugin_failed"),
    ],
)
async def test_what_one_raises_prevents_it(error: BaseException, event: str) -> None:
    calls: list[str] = []
    result = await asked(Decides(calls=calls, name="a", error=error), Decides(calls=calls, name="b"))
    assert (result, calls) == ((False, [(event, "a")]), ["a"])


@pytest.mark.parametrize(("error", "may"), [(REFUSED, False), (AWAY, True), (RuntimeError("a bug"), True)])
async def test_errors_may_be_ignored_but_no_refusal(error: BaseException, may: bool) -> None:
    calls: list[str] = []
    plugins = Decides(calls=calls, name="a", error=error), Decides(calls=calls, name="b")
    found, logs = await asked(*plugins, on_error="ignore")
    assert (found, len(logs), calls) == (may, 1, ["a", "b"] if may else ["a"])


async def test_a_cancellation_goes_on() -> None:
    class Waits(Decides):
        async def on_failover(self, exchange: Exchange) -> None:
            await asyncio.Event().wait()

    call: Callable[[], Any] = lambda: may_fail_over(exchange(), [Entry("a", Waits(calls=[], name="a"))])  # noqa: E731
    task = asyncio.create_task(call())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
