"""The admin port: what the usage log tells, for operators. In a process of its own, on loopback unless the file says otherwise.

1. Who has no token learns nothing but that somebody is here: `GET /healthz` says `ok`, all else is 401.
2. It only reads, and the gateway goes on without it: a port that is taken is a loud line and tried again.
3. Nothing waits in memory for a follower that reads slowly: each goes on from its own place in the files.
"""

from __future__ import annotations

import asyncio
import hmac
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import date
from pathlib import Path
from typing import Final

import msgspec
import structlog
from aiohttp import web
from aiohttp.typedefs import Handler
from aiohttp_sse import EventSourceResponse, sse_response
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from gateway.config.schema import Config, host_port
from gateway.config.secrets import secret_of
from gateway.errors import Refused, cannot_listen, headers_of, internal, render
from gateway.metrics.exporter import Exporter
from gateway.request_id import new_id
from gateway.usage import queries
from gateway.usage.database import GROUPS
from gateway.usage.record import encode

LIVE: Final = "/usage/live"
POLL_S: Final = 0.25
PING_S: Final = 15.0
MOST_FOLLOWERS: Final = 32
TRY_AGAIN_S: Final = 10.0

log = structlog.get_logger("gateway.admin.app")


def token_of(config: Config) -> str:
    """The admin port's token: `$GATEWAY_ADMIN_TOKEN`, else the file `admin.token` in `data`. Raises `Misconfigured`."""
    return secret_of(config.data_path / "admin.token", "GATEWAY_ADMIN_TOKEN").decode("utf-8", "replace")


def main(config: Config, address: str, exporter: Exporter) -> None:
    """Serve on `address` until SIGTERM."""

    async def until_terminated() -> None:
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        await serve(config, address, exporter, stop)

    asyncio.run(until_terminated())


async def serve(config: Config, address: str, exporter: Exporter, stop: asyncio.Event) -> None:
    """Serve until `stop` is set, from the moment that the address is free."""
    loud = True
    while not stop.is_set():
        try:
            async with serving(Admin(config.data_path / "usage", token_of(config), exporter), address):
                log.info("admin_port_served", address=address)
                await stop.wait()
        except OSError as error:
            if loud:
                log.error(
                    "admin_port_not_served", reason=cannot_listen(address, error), cure="stop it or change `admin:`"
                )
            loud = False
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), TRY_AGAIN_S)


@asynccontextmanager
async def serving(admin: Admin, address: str) -> AsyncIterator[int]:
    """The admin port on `address`; gives the port's number. Raises `OSError` where it is taken."""
    runner = web.AppRunner(admin.application(), access_log=None, shutdown_timeout=2 * POLL_S, handler_cancellation=True)
    await runner.setup()
    try:
        await web.TCPSite(runner, *host_port(address)).start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


class Admin:
    """What the port answers."""

    def __init__(self, folder: Path, token: str, exporter: Exporter) -> None:
        self._folder = folder
        self._exporter = exporter
        self._authorization = f"Bearer {token}".encode()
        self._followers: set[EventSourceResponse] = set()

    def application(self) -> web.Application:
        """The routes."""
        application = web.Application(middlewares=[self._guard])
        application.router.add_get("/healthz", self._health)
        application.router.add_get("/metrics", self._metrics)
        application.router.add_get(LIVE, self._live)
        application.router.add_get("/usage/summary", self._summary)
        application.on_shutdown.append(self._dismiss)
        return application

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        given = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
        try:
            if request.path != "/healthz" and not hmac.compare_digest(given, self._authorization):
                raise Refused(401, "token_invalid", "Send the admin token: `Authorization: Bearer TOKEN`.")
            return await handler(request)
        except Refused as refused:
            return _refusal(refused)
        except web.HTTPException as error:
            return _refusal(
                Refused(error.status, "unknown_path", "Known here: GET /metrics, GET /usage/live, GET /usage/summary.")
            )
        except ConnectionError:
            raise
        except Exception as error:
            log.error("admin_request_failed", exc_info=error)
            return _refusal(internal())

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=self._exporter.exposition(), headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})

    async def _summary(self, request: web.Request) -> web.Response:
        by = [name for name in request.query.get("by", "day").split(",") if name]
        if not set(by) <= set(GROUPS):
            raise Refused(400, "invalid_request", f"`by` is some of {', '.join(GROUPS)}, with commas.", param="by")
        first, last = _day(request, "from"), _day(request, "to")
        totals = await asyncio.to_thread(queries.summary, self._folder, by, since=first, until=last)
        return web.Response(body=msgspec.json.encode(totals), content_type="application/json")

    async def _live(self, request: web.Request) -> web.StreamResponse:
        """Each request when it has ended, from now on or from `Last-Event-ID` on; `?account=` chooses."""
        if len(self._followers) >= MOST_FOLLOWERS:
            raise Refused(503, "service_unavailable", "Enough follow already.", retry_after_s=TRY_AGAIN_S)
        try:
            tail = await asyncio.to_thread(queries.Tail, self._folder, request.headers.get("Last-Event-ID", ""))
        except ValueError as error:
            raise Refused(400, "invalid_request", f"Last-Event-ID: {error}.", param="Last-Event-ID") from None
        account = request.query.get("account")
        async with sse_response(request, sep="\n", ping_interval=PING_S) as response:
            self._followers.add(response)
            try:
                await response.write(b": from here on\n\n")
                while response.is_connected():
                    ended = await asyncio.to_thread(tail.poll)
                    for cursor, record in ended:
                        if account in (None, record.account):
                            await response.send(encode(record).decode(), id=cursor)
                    await asyncio.sleep(0 if ended else POLL_S)
            except TimeoutError:
                log.warning("follower_too_slow")
            finally:
                self._followers.discard(response)
        return response

    async def _dismiss(self, _: web.Application) -> None:
        for follower in self._followers:
            follower.stop_streaming()


def _day(request: web.Request, name: str) -> str | None:
    text = request.query.get(name)
    try:
        return text and date.fromisoformat(text).isoformat()
    except ValueError:
        raise Refused(400, "invalid_request", f"`{name}` is a day such as 2026-11-21.", param=name) from None


def _refusal(refused: Refused) -> web.Response:
    body = render(refused, new_id())
    return web.Response(status=refused.status, body=body, headers=headers_of(refused), content_type="application/json")
