"""Demo: adds to a gateway an upstream that streams at reading speed, and an account with money and a token."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Final

import msgspec
import typer

from gateway.admin.actions import links
from gateway.admin.actions.action import Actor
from gateway.admin.actions.local import LocalClient
from gateway.base import durable
from gateway.base.amounts import MICROS
from gateway.base.errors import Misconfigured, Refused, cannot_listen
from gateway.chain.services import Store
from gateway.config.schema import Config, Demo, Loaded, host_port
from gateway.fake_upstream import FakeUpstream

OPENING_CREDIT: Final = "demo-opening"
"""The transaction of the first credit, which is applied once, however often the demo starts."""


def upstream(settings: Demo) -> Callable[[Callable[[], None]], None]:
    """Return the work of a child process that serves the demo upstream."""

    async def serve(ready: Callable[[], None]) -> None:
        host, port = host_port(settings.upstream)
        try:
            async with FakeUpstream(host=host, port=port):
                ready()
                await asyncio.Event().wait()
        except OSError as error:
            raise Misconfigured(f"{cannot_listen(settings.upstream, error)}; change `demo.upstream`") from None

    return lambda ready: asyncio.run(serve(ready))


def with_free_ports(loaded: Loaded) -> Loaded:
    """Return a demo's configuration with free ports for operators and callers where another program has those of the file.

    `gateway admin link` and `gateway account link` find them in the data folder.
    """
    config = loaded.config
    for port in links.PORTS:
        links.elsewhere(config, port).unlink(missing_ok=True)
    if config.demo is None:
        return loaded
    if config.admin is not None:
        config = msgspec.structs.replace(config, admin=_free(config, "admin", config.admin, "the pages are"))
    if config.portal is not None:
        listen = _free(config, "portal", config.portal.listen, "the portal is")
        config = msgspec.structs.replace(config, portal=msgspec.structs.replace(config.portal, listen=listen))
    return msgspec.structs.replace(loaded, config=config)


def _free(config: Config, port: str, address: str, what: str) -> str:
    """Return the address, or a free one in its place, which the data folder then has."""
    host, number = host_port(address)
    try:
        socket.create_server((host, number), family=socket.AF_INET6 if ":" in host else socket.AF_INET).close()
    except OSError as error:
        with socket.create_server(("127.0.0.1", 0)) as free:
            found = f"127.0.0.1:{free.getsockname()[1]}"
        typer.echo(f"{cannot_listen(address, error)}: {what} at {found}", err=True)
        durable.write(links.elsewhere(config, port), found.encode())
        return found
    return address


class Opened(msgspec.Struct, frozen=True):
    """What the demo has for a newcomer: an account, its token, and a link to the pages, which is empty where there are none."""

    account: str
    token: str
    link: str


async def opened(store: Store, loaded: Loaded, settings: Demo) -> Opened:
    """Open the demo's account, and make a link that lets a person in at the pages of the operator's port."""
    config, link = loaded.config, ""
    token = await token_of(store, config, settings)
    if config.admin is not None:
        links.token_of(config)
        actor = Actor("start of the demo")
        made = await links.create(LocalClient(loaded, store, actor), body=links.NewLink(name="demo"))
        link = made.url or ""
    return Opened(settings.account, token, link)


async def token_of(store: Store, config: Config, settings: Demo) -> str:
    """Return the demo account's token: the stored one while it works, else a new one. Create and credit the account once."""
    if await store.accounts.get(settings.account) is None:
        await store.accounts.create(settings.account)
    await store.wallet.credit(settings.account, OPENING_CREDIT, int(settings.credit * MICROS))
    file = config.data_path / f"{settings.account}.token"
    if file.exists():
        token = file.read_text(encoding="ascii").strip()
        try:
            await store.tokens.authenticate(token)
        except Refused:
            file.unlink()
        else:
            return token
    created = await store.tokens.create(settings.account, name="demo")
    durable.write(file, f"{created.token}\n".encode("ascii"), mode=0o600)
    return created.token
