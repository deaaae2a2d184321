"""The API in a process of its own, which can be killed: `python -m tests.admin.actions.api_process CONFIG PORT`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Final

from gateway.admin.actions.action import Actor
from gateway.admin.actions.local import LocalClient
from gateway.admin.actions.management_tokens import ManagementTokens
from gateway.admin.http import idempotency
from gateway.admin.http.app import Admin, Callers
from gateway.admin.http.port import serving
from gateway.chain.services import Store
from gateway.config.schema import load
from gateway.metrics.exporter import Exporter

TOKEN: Final = "an-admin-token-of-31-characters"
READY: Final = b"served\n"
LEASE_MS: Final = 300
"""So long is a key in use after a kill: tests do not wait for ten seconds."""


async def main(file: Path, port: int) -> None:
    """Serve until this process is killed."""
    for module in (idempotency, idempotency):
        setattr(module, "LEASE_MS", LEASE_MS)  # noqa: B010 - it is final
    loaded = load(file)
    async with Store.open(loaded.config, loaded.config.redis) as store:

        def client_of(actor: Actor, key: str) -> LocalClient:
            return LocalClient(loaded, store, actor, key)

        admin = Admin(Callers(lambda: TOKEN, ManagementTokens(store.client)), Exporter({}), client_of)
        async with serving(admin.application(), f"127.0.0.1:{port}"):
            sys.stdout.buffer.write(READY)
            sys.stdout.buffer.flush()
            await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
