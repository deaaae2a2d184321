"""Files that a page offers: CSV that is sent as it is read from the log."""

from __future__ import annotations

from aiohttp import web

from gateway.management.streamed import CsvFile


async def download(request: web.Request, file: CsvFile) -> web.StreamResponse:
    """Send a file of CSV, to be saved under its name."""
    response = web.StreamResponse(headers={"Content-Disposition": f'attachment; filename="{file.name}"'})
    response.content_type, response.charset = "text/csv", "utf-8"
    await response.prepare(request)
    async for piece in file.pieces:
        await response.write(piece.encode())
    await response.write_eof()
    return response
