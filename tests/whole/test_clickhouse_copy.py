"""A running gateway copies the requests that ended to ClickHouse, and never logs the credential."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from tests.cli.processes import demo_in, serving
from tests.patience import PATIENCE_S
from tests.usage.test_clickhouse import PASSWORD, Server, server_without_engine
from tests.whole.test_admin_port import ask

__all__ = ["server_without_engine"]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs the whole program")


async def test_what_was_served_is_copied_and_an_outage_stops_nothing(
    tmp_path: Path, server_without_engine: Server
) -> None:
    server_without_engine.fails = 1
    file = demo_in(tmp_path)
    file.write_text(f"{file.read_text()}usage: {{clickhouse: '{server_without_engine.url}'}}\n")
    async with serving(file) as served:
        request_id = await ask(served)
        async with asyncio.timeout(PATIENCE_S):
            while not any(statement.startswith("INSERT") for statement in server_without_engine.statements):
                await asyncio.sleep(0.05)
        assert await served.stop() == 0
    assert any(request_id in data for data in server_without_engine.data)
    log = (tmp_path / "serve.log").read_text()
    assert log.index("clickhouse_waits") < log.index("clickhouse_goes_on")
    assert PASSWORD not in log
