"""The way from the embedded store to another server that deploy/store.md describes: its commands make a file that all can read."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from gateway.store.client.client import Client
from gateway.store.embedded import EmbeddedStore
from tests.patience import PATIENCE_S

README = Path(__file__).parent.parent.parent / "deploy" / "store.md"


def commands() -> list[list[str]]:
    """Return what the document sends to the store."""
    return [line.split() for line in re.findall(r"redis-cli -s \S+/store\.sock (.*)", README.read_text())]


@asynccontextmanager
async def serving(data: Path) -> AsyncIterator[Client]:
    store = EmbeddedStore.start(data)
    client = Client.connect(store.url, timeout_s=PATIENCE_S, connections=1)
    try:
        yield client
    finally:
        await client.close()
        store.stop()


async def test_the_commands_of_the_document_let_the_store_write_what_older_servers_read(tmp_path: Path) -> None:
    *changes, status = commands()
    before, after = (tmp_path / name / "appendonlydir" for name in ("before", "after"))
    async with serving(before.parent) as client, asyncio.timeout(PATIENCE_S):
        await client.call("SET", "balance", "500")
        for command in changes:
            await client.call(*command)
        while not list(before.glob("*.base.aof")) or (await client.call(*status))["aof_rewrite_in_progress"]:
            await asyncio.sleep(0.02)
        await client.call("SET", "later", "7")
    assert not list(before.glob("*.rdb")), "older servers refuse its version"
    for file in before.glob("*.aof"):
        assert file.read_bytes().startswith(b"*"), f"{file.name} holds no plain commands"
    shutil.copytree(before, after)
    async with serving(after.parent) as client:
        assert [await client.call("GET", key) for key in ("balance", "later")] == [b"500", b"7"]
