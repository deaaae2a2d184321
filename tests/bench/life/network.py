"""A TCP proxy between the gateway and upstreams, which delays, drops or resets what passes."""

from __future__ import annotations

import asyncio
from enum import StrEnum
from types import TracebackType
from typing import Self

PIECE = 65536


class Weather(StrEnum):
    """What happens to the connections of the proxy."""

    FAIR = "forwards"
    DELAY = "forwards each piece half a second late"
    DROP = "swallows what is sent"
    RESET = "resets every connection"


class Network:
    """A proxy to `port` on loopback. `weather` may change at any time; `open` holds its connections."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._weather = Weather.FAIR
        self.open: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    @property
    def port(self) -> int:
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def weather(self) -> Weather:
        return self._weather

    @weather.setter
    def weather(self, weather: Weather) -> None:
        self._weather = weather
        if weather is Weather.RESET:
            for writer in list(self.open):
                writer.transport.abort()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for writer in list(self.open):
            writer.transport.abort()
        await asyncio.sleep(0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._weather is Weather.RESET:
            writer.transport.abort()
            return
        try:
            onward_reader, onward = await asyncio.open_connection("127.0.0.1", self._to)
        except OSError:
            writer.transport.abort()
            return
        ends = {writer, onward}
        self.open |= ends
        pumps = [asyncio.create_task(self._pump(*each)) for each in ((reader, onward), (onward_reader, writer))]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            for end in ends:
                end.close()
            self.open -= ends

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(PIECE):
            if self._weather is Weather.DELAY:
                await asyncio.sleep(0.5)
            if self._weather is Weather.DROP:
                continue
            writer.write(data)
            await writer.drain()
