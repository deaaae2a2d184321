"""What plugins begin with their services ends with them: after `stop`, and where a start fails."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gateway import Plugin, Route, Services
from gateway.base.errors import Misconfigured
from gateway.chain.chain import Chain
from gateway.chain.entry import Entry
from gateway.testing import services
from tests.patience import wait_until


class Works(Plugin):
    """Works in the background, and fails to start where it is asked to."""

    provides = (Route,)

    fails: bool = False

    async def on_request(self, exchange: object) -> None: ...

    async def start(self, services: Services) -> None:
        self.calls = 0
        self.stopped: list[bool] = []
        self.http = services.http
        services.every(0.001, self._count)
        if self.fails:
            raise ValueError("not now")

    async def stop(self) -> None:
        calls = self.calls
        await asyncio.sleep(0.01)
        self.stopped += [self.calls == calls, not self.http.closed]

    async def _count(self) -> None:
        self.calls += 1


async def test_the_tasks_end_before_stop_and_the_session_after_it(store_url: str, tmp_path: Path) -> None:
    plugin = Works()
    before = asyncio.all_tasks()
    async with services(tmp_path, store_url) as given:
        chain = Chain([Entry("works", plugin)])
        await chain.start(given)
        await wait_until(lambda: plugin.calls > 1)
        await chain.stop()
    assert plugin.stopped == [True, True]
    assert plugin.http.closed
    assert asyncio.all_tasks() == before


async def test_a_plugin_that_does_not_start_leaves_nothing(store_url: str, tmp_path: Path) -> None:
    good, bad = Works(), Works(fails=True)
    before = asyncio.all_tasks()
    async with services(tmp_path, store_url) as given:
        chain = Chain([Entry("good", good), Entry("bad", bad)])
        with pytest.raises(Misconfigured, match="'bad' does not start: not now"):
            await chain.start(given)
    assert (good.http.closed, bad.http.closed) == (True, True)
    assert asyncio.all_tasks() == before
