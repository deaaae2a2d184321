"""A client of the operator's API of a running gateway, which waits until that serves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp

from tests.patience import PATIENCE_S

AWAY: Final = (aiohttp.ClientConnectionError, FileNotFoundError)


def admin_token(folder: Path) -> str:
    """Return the admin token of a gateway whose data is in `folder`."""
    return (folder / "data" / "admin.token").read_text().strip()


class Api:
    """Sends to one API with one token."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url

    async def call(self, method: str, path: str, body: Any = None, key: str = "") -> tuple[int, Any]:
        """Return the status and the body of an answer. Raises `aiohttp.ClientError` where none comes."""
        headers = {"Idempotency-Key": key} if key else {}
        async with self._session.request(method, f"{self._url}/api/v1{path}", json=body, headers=headers) as response:
            return response.status, await response.json() if response.status != 204 else None

    async def served(self) -> None:
        """Wait until the port is served."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    async with self._session.get(f"{self._url}/healthz") as response:
                        assert response.status == 200
                        return
                except AWAY:
                    await asyncio.sleep(0.05)

    async def lost(self, method: str, path: str, body: Any, key: str) -> bool:
        """Send a request once the port is served, and return whether its answer was lost."""
        await self.served()
        try:
            await self.call(method, path, body, key)
        except aiohttp.ClientError:
            return True
        return False

    async def repeated(self, method: str, path: str, body: Any, key: str) -> tuple[int, Any]:
        """Send a request again until no other attempt has its key, and return the answer."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                status, said = await self.call(method, path, body, key)
                if status != 409 or said["error"]["code"] != "idempotency_key_in_use":
                    return status, said
                await asyncio.sleep(0.2)


@asynccontextmanager
async def api_of(folder: Path, port: int) -> AsyncIterator[Api]:
    """Yield a client with the admin token, once the port is served."""
    async with asyncio.timeout(PATIENCE_S):
        while not (folder / "data" / "admin.token").exists():
            await asyncio.sleep(0.02)
    timeout = aiohttp.ClientTimeout(PATIENCE_S)
    headers = {"Authorization": f"Bearer {admin_token(folder)}"}
    async with aiohttp.ClientSession(headers=headers, timeout=timeout) as session:
        api = Api(session, f"http://127.0.0.1:{port}")
        await api.served()
        yield api
