"""CSV files over HTTP, written as they are read, so that one of any length takes no more memory than some lines."""

from __future__ import annotations

import asyncio
from typing import Final

from aiohttp import web

from gateway.errors import Refused
from gateway.log import Logger
from gateway.management.streamed import CsvFile

MAX_FILES: Final = 8
"""Files that are sent at once."""
RETRY_AFTER_S: Final = 10.0
SEND_S: Final = 120.0
"""How long a client may take none of it."""

log = Logger("gateway.admin.csv_file")


class CsvFiles:
    """The files that are being sent."""

    def __init__(self) -> None:
        self._count = 0

    async def send(self, request: web.Request, file: CsvFile) -> web.StreamResponse:
        """Send a file. Raises `Refused` where too many are being sent, and what is wrong before its first line."""
        if self._count >= MAX_FILES:
            raise Refused(
                503, "service_unavailable", "Enough files are being sent already.", retry_after_s=RETRY_AFTER_S
            )
        self._count += 1
        try:
            return await self._send(request, file)
        finally:
            self._count -= 1

    async def _send(self, request: web.Request, file: CsvFile) -> web.StreamResponse:
        disposition = f'attachment; filename="{file.name}"'
        response = web.StreamResponse(headers={"Content-Disposition": disposition})
        response.content_type, response.charset = file.content_type, "utf-8"
        first = await anext(file.pieces)
        await response.prepare(request)
        await response.write(first.encode())
        try:
            async for piece in file.pieces:
                async with asyncio.timeout(SEND_S):
                    await response.write(piece.encode())
        except TimeoutError:
            log.warning("reader_too_slow")
            if request.transport is not None:
                request.transport.abort()
            return response
        await response.write_eof()
        return response
