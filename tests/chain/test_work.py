"""What a plugin does beside its hooks: it is called again, its failures are logged, and it ends with the plugin."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web
from pytest_aiohttp import AiohttpServer
from structlog.testing import capture_logs

from gateway.chain.services import MAX_TASKS, Services
from gateway.testing import services
from tests.patience import wait_until


@pytest.fixture
async def work(tmp_path: Path, store_url: str) -> AsyncIterator[Services]:
    async with services(tmp_path, store_url) as given:
        yield given.named("office-hours")


async def test_a_function_is_called_again_after_a_failure_which_is_logged(work: Services) -> None:
    calls: list[str] = []

    async def refresh() -> None:
        task = asyncio.current_task()
        calls.append(task.get_name() if task else "")
        if len(calls) == 1:
            raise SystemExit("a bug")

    with capture_logs() as logged:
        work.every(0.001, refresh)
        await wait_until(lambda: len(calls) >= 3)
    await work.close()
    (line,) = logged
    assert (line["event"], line["plugin"], line["hook"]) == ("plugin_failed", "office-hours", "every")
    assert line["work"].endswith("refresh")
    assert line["at"].startswith(f"{Path(__file__)}, line ")
    assert calls[0].startswith("office-hours: ")


async def test_what_runs_is_cancelled_and_waited_for(work: Services) -> None:
    ended = []

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    before = asyncio.all_tasks()
    work.every(0.001, wait)
    await asyncio.sleep(0.05)
    await work.end_tasks()
    assert (ended, asyncio.all_tasks()) == ([True], before)


async def test_what_cannot_be_repeated_is_refused(work: Services) -> None:
    async def nothing() -> None: ...

    with pytest.raises(ValueError, match="give seconds above 0, not 0"):
        work.every(0, nothing)
    for _ in range(MAX_TASKS):
        work.every(60, nothing)
    with pytest.raises(ValueError, match="16 tasks at most"):
        work.every(60, nothing)
    await work.close()


async def test_the_session_is_one_and_is_closed(work: Services, aiohttp_server: AiohttpServer) -> None:
    async def handler(_: web.Request) -> web.Response:
        return web.Response(text="hi")

    app = web.Application()
    app.router.add_get("/", handler)
    server = await aiohttp_server(app)
    session = work.http
    async with session.get(server.make_url("/")) as response:
        assert await response.text() == "hi"
    assert session is work.http
    assert session.timeout.total == 30
    await work.close()
    assert session.closed


async def test_what_is_no_function_is_refused_in_words(work: Services) -> None:
    async def refresh() -> None:
        pass

    with pytest.raises(
        TypeError, match=r"give the function without calling it, as in `services.every\(60, self.refresh\)`"
    ):
        work.every(60, refresh())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="give an `async` function, not None"):
        work.every(60, None)  # type: ignore[arg-type]
    await work.close()
