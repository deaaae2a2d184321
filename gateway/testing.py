"""For tests of plugins: an exchange made up, a clock that stands still, services on a real store, a whole gateway.

Nothing here is a mock: the store is a real server, the gateway listens on a real socket, and `gateway.fake_upstream` is a
real upstream that misbehaves on demand.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import structlog
from aiohttp import ClientSession
from multidict import CIMultiDict, CIMultiDictProxy

from gateway.catalogue import Catalogue
from gateway.chat.request import Body, BodyRules, check
from gateway.config import schema
from gateway.config.schema import Config, Loaded, StoreSettings
from gateway.exchange import Exchange, Request
from gateway.fake_upstream import FakeUpstream
from gateway.plugin import Plugin
from gateway.runtime.worker import opened
from gateway.server.gateway import Gateway
from gateway.server.routes import operation_of
from gateway.services import Services, Store
from gateway.store.client.embedded import EmbeddedStore

__all__ = [
    "Answered",
    "FakeUpstream",
    "FixedClock",
    "Running",
    "configuration",
    "exchange",
    "running",
    "services",
    "started",
]

AnyPlugin = TypeVar("AnyPlugin", bound=Plugin)

MINIMAL_BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}

PATIENT: Final = StoreSettings(timeout=10)
"""A test is not about how soon a busy machine's store answers."""

BELOW: Final = ("rate-limit", "quota", "model-routing")


class FixedClock:
    """A clock that moves only when told."""

    def __init__(self, now: float = 1_800_000_000.0) -> None:
        self.now = now

    def time(self) -> float:
        """UTC, seconds since 1970."""
        return self.now

    def monotonic(self) -> float:
        """The same hand."""
        return self.now

    def move(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds


def exchange(
    body: Mapping[str, Any] | bytes | None = None,
    *,
    method: str = "POST",
    path: str = "/v1/chat/completions",
    headers: Mapping[str, str] | None = None,
    peer: str = "127.0.0.1",
) -> Exchange:
    """A request as it would arrive; `body` is checked as the gateway would, on first need."""
    raw = body if isinstance(body, bytes) else msgspec.json.encode({**MINIMAL_BODY, **(body or {})})

    async def read() -> Body:
        return check(raw, BodyRules())

    operation, argument = operation_of(method, path)
    head = CIMultiDictProxy(CIMultiDict(headers or {}))
    return Exchange(Request(method, path, head, peer, operation, argument), read)


@asynccontextmanager
async def services(folder: Path, url: str | None = None, settings: Config | None = None) -> AsyncIterator[Services]:
    """Services on a real store: the one at `url`, or one started in `folder`, an empty one, for the moment."""
    settings = msgspec.structs.replace(settings or Config(store=PATIENT), data=str(folder))
    with _store(folder, url) as address:
        async with Store.open(settings, address) as store:
            yield Services(
                name="test",
                store=store,
                redis=store.client,
                clock=FixedClock(),
                log=structlog.get_logger("gateway.plugin"),
                catalogue=Catalogue(settings),
            )


async def started(plugin: AnyPlugin, given: Services) -> AnyPlugin:
    """The plugin, after its `start`."""
    await plugin.start(given)
    return plugin


class Answered(msgspec.Struct, frozen=True):
    """What a caller got, whole. `headers` is case-insensitive."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Running:
    """A whole gateway on a real socket of this process. `base_url` ends in /v1."""

    def __init__(self, gateway: Gateway, address: tuple[str, int]) -> None:
        self.gateway = gateway
        self.store = gateway.services.store
        self.host, self.port = address
        self.base_url = f"http://{self.host}:{self.port}/v1"

    async def token(self, account: str = "tester", *, credit: int = 5_000_000, group: str = "default") -> str:
        """The token of a new account with `credit` micros."""
        await self.store.accounts.create(account, group=group)
        if credit:
            await self.store.wallet.credit(account, "opening", credit)
        return (await self.store.tokens.create(account)).token

    async def ask(self, token: str, text: str = "hi", **fields: object) -> Answered:
        """One chat completion, streamed; `fields` go into the body. Raises aiohttp's `ClientError` for a stream that is cut."""
        body = {"model": "words", "messages": [{"role": "user", "content": text}], "stream": True, **fields}
        headers = {"Authorization": f"Bearer {token}"}
        async with (
            ClientSession() as session,
            session.post(f"{self.base_url}/chat/completions", json=body, headers=headers) as answer,
        ):
            return Answered(answer.status, answer.headers, await answer.read())


def configuration(base_url: str, *plugins: Mapping[str, object]) -> str:
    """A whole configuration: the model `words`, which the upstream at `base_url` serves, behind the shipped plugins.

    `plugins` stand between `auth` and `rate-limit`, each as in YAML: `{"use": "office_hours:OfficeHours", "with": {}}`.
    """
    chain = ({"use": "usage-logger"}, {"use": "auth"}, *plugins, *({"use": name} for name in BELOW))
    whole = {
        "channels": {"fake": {"base_url": base_url}},
        "models": {"words": {"input": 1, "output": 2, "max_output_tokens": 100, "channels": ["fake"]}},
        "groups": {"default": {}},
        "store": {"timeout": PATIENT.timeout},
        "plugins": chain,
    }
    return msgspec.json.encode(whole).decode()


@asynccontextmanager
async def running(yaml: str, folder: Path, url: str | None = None) -> AsyncIterator[Running]:
    """The gateway of a configuration on a free port, its data in `folder`, its store as in `services`."""
    file = folder / "gateway.yaml"
    file.write_text(yaml, encoding="utf-8")
    read = schema.load(file)
    loaded = Loaded(msgspec.structs.replace(read.config, data=str(folder / "data")), read.document)
    loaded.config.data_path.mkdir(mode=0o700, exist_ok=True)
    with _store(loaded.config.data_path, url) as address:
        async with opened(loaded, address) as gateway:
            listener = socket.create_server(("127.0.0.1", 0))
            await gateway.listen(listener)
            yield Running(gateway, listener.getsockname())


@contextmanager
def _store(folder: Path, url: str | None) -> Iterator[str]:
    if url is not None:
        yield url
        return
    embedded = EmbeddedStore.start(folder)
    try:
        yield embedded.url
    finally:
        embedded.stop()
