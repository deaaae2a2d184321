"""A TCP proxy between the gateway and upstreams, which delays, drops or resets what passes."""

from __future__ import annotations

import asyncio
from enum import StrEnum

from tests.tcp import TcpServer

PIECE = 65536


class Weather(StrEnum):
    """What happens to the connections of the proxy."""

    FAIR = "forwards"
    DELAY = "forwards each piece half a second late"
    DROP = "swallows what is sent"
    RESET = "resets every connection"


class Network(TcpServer):
    """A proxy to `port` on loopback. `weather` may change at any time."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self._to = port
        self._weather = Weather.FAIR

    @property
    def weather(self) -> Weather:
        return self._weather

    @weather.setter
    def weather(self, weather: Weather) -> None:
        self._weather = weather
        if weather is Weather.RESET:
            self.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._weather is Weather.RESET:
            writer.transport.abort()
            return
        try:
            onward_reader, onward = await asyncio.open_connection("127.0.0.1", self._to)
        except OSError:
            writer.transport.abort()
            return
        self.open.add(onward)
        pumps = [asyncio.create_task(self._pump(*each)) for each in ((reader, onward), (onward_reader, writer))]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            onward.close()
            self.open.discard(onward)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(PIECE):
            if self._weather is Weather.DELAY:
                await asyncio.sleep(0.5)
            if self._weather is Weather.DROP:
                continue
            writer.write(data)
            await writer.drain()
