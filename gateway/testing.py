"""Tools for tests of plugins: exchanges, a clock that the test moves, services with a real store, a complete gateway.

There are no mocks: the store is a real server, the gateway listens on a real socket, and `FakeUpstream` is a real HTTP server
that misbehaves on demand.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
from aiohttp import ClientSession
from multidict import CIMultiDict, CIMultiDictProxy

from gateway.base.ids import Clock
from gateway.base.log import log
from gateway.chain.end_hooks import run_end_hooks
from gateway.chain.entry import Entry
from gateway.chain.plugin import Plugin
from gateway.chain.request_hooks import RequestHooks
from gateway.chain.services import Services, Store
from gateway.chat.answers import WholeAnswer
from gateway.chat.dialect import ChatRequest
from gateway.chat.fields import MAY_ALLOW
from gateway.chat.request import Body, BodyRules, check
from gateway.config import schema
from gateway.config.schema import Config, Loaded, StoreSettings
from gateway.domain.catalogue import Catalogue
from gateway.domain.exchange import Exchange, Request
from gateway.domain.reply import Reply
from gateway.fake_upstream import FakeUpstream
from gateway.proxy.translation import foreign_chat
from gateway.runtime.worker import opened
from gateway.server.gateway import Gateway
from gateway.server.routes import operation_of
from gateway.store.embedded import EmbeddedStore
from gateway.store.pepper import make_pepper
from gateway.usage.database import UsageFiles
from gateway.usage.log import UsageLog
from gateway.usage.sink import Sink

__all__ = [
    "Answered",
    "FakeUpstream",
    "FixedClock",
    "Running",
    "chat_request",
    "configuration",
    "exchange",
    "run_end",
    "run_request",
    "running",
    "services",
    "started",
]

AnyPlugin = TypeVar("AnyPlugin", bound=Plugin)

MINIMAL_BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}

PATIENT: Final = StoreSettings(timeout=10)
"""A store timeout that does not fail tests on a busy machine."""

PLUGINS_BELOW: Final = ("rate-limit", "quota", "model-routing")


class FixedClock(Clock):
    """A clock that stands still until `move` is called."""

    def __init__(self, now: float = 1_800_000_000.0) -> None:
        self.now = now

    def time(self) -> float:
        """Return UTC, in seconds since 1970."""
        return self.now

    def monotonic(self) -> float:
        """Return the same number as `time`."""
        return self.now

    def move(self, seconds: float) -> None:
        """Move the clock forward."""
        self.now += seconds


def exchange(
    body: Mapping[str, Any] | bytes | None = None,
    *,
    method: str = "POST",
    path: str = "/v1/chat/completions",
    headers: Mapping[str, str] | None = None,
    peer: str = "127.0.0.1",
    answer: Mapping[str, Any] | None = None,
) -> Exchange:
    """Return an exchange as it is when a request has arrived.

    A mapping as `body` is merged into a minimal chat completion, bytes are taken as they are. The body is checked on first need.
    `answer`: what `on_response` finds as `exchange.answer`.
    """
    raw = body if isinstance(body, bytes) else msgspec.json.encode({**MINIMAL_BODY, **(body or {})})

    async def read() -> Body:
        return check(raw, BodyRules())

    operation, argument = operation_of(method, path)
    head = CIMultiDictProxy(CIMultiDict(headers or {}))
    made = Exchange(Request(method, path, head, peer, operation, argument), read)
    made.check_body = _check
    made.texts = None if answer is None else WholeAnswer(msgspec.json.encode(answer))
    made.hooks = _DirectCall()
    return made


async def _check(raw: bytes) -> Body:
    return check(raw, BodyRules())


class _DirectCall:
    """Stands in for the request hooks where a test calls a hook itself, which may change the request."""

    async def before_body(self) -> None: ...

    def editor(self) -> str:
        return "test"


def chat_request(body: Mapping[str, Any] | None = None, *, model: str = "m", max_tokens: int = 4096) -> ChatRequest:
    """Return what a `Dialect` is given for a request. `body` is merged into a minimal chat completion. Raises `Refused`."""
    rules = BodyRules(allow_fields=frozenset(MAY_ALLOW))
    checked = check(msgspec.json.encode({**MINIMAL_BODY, **(body or {})}), rules)
    return foreign_chat(checked, model, max_tokens)


@asynccontextmanager
async def services(folder: Path, url: str | None = None, settings: Config | None = None) -> AsyncIterator[Services]:
    """Provide services with a real store: the one at `url`, or else an empty one that runs in `folder` until the end."""
    settings = msgspec.structs.replace(settings or Config(store=PATIENT), data=str(folder))
    with _store(folder, url) as address:
        make_pepper(folder)
        async with Store.open(settings, address) as store:
            given = Services(
                name="test",
                store=store,
                redis=store.client,
                clock=FixedClock(),
                log=log,
                catalogue=Catalogue(settings),
            )
            try:
                yield given
            finally:
                await given.close()


async def started(plugin: AnyPlugin, given: Services) -> AnyPlugin:
    """Start a plugin and return it."""
    await plugin.start(given)
    return plugin


async def run_request(plugin: Plugin, exchange: Exchange, given: Services) -> Reply | None:
    """Run the request hook of a started plugin as the gateway does: a step that it plans is sent to the store.

    Raises what the hook or the reading of the step's reply raises.
    """
    entry = Entry(given.name, plugin)
    return await RequestHooks(exchange, [entry], [], given.store.client).run()


async def run_end(plugin: Plugin, exchange: Exchange, given: Services) -> None:
    """Run the end hook of a started plugin as the gateway does. What it raises is only logged."""
    await run_end_hooks(exchange, [Entry(given.name, plugin)], given.store.settling)


class Answered(msgspec.Struct, frozen=True):
    """A complete response. `headers` is case-insensitive."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Running:
    """A complete gateway that listens in this process. `base_url` ends in /v1."""

    def __init__(self, gateway: Gateway, address: tuple[str, int]) -> None:
        self.gateway = gateway
        self.store = gateway.services.store
        self.host, self.port = address
        self.base_url = f"http://{self.host}:{self.port}/v1"

    async def token(self, account: str = "tester", *, credit: int = 5_000_000, group: str = "default") -> str:
        """Create an account with a balance of `credit` micros, and return a token of it."""
        await self.store.accounts.create(account, group=group)
        if credit:
            await self.store.wallet.credit(account, "opening", credit)
        return (await self.store.tokens.create(account)).token

    async def ask(self, token: str, text: str = "hi", **fields: object) -> Answered:
        """Send one streaming chat completion and return the complete response. `fields` are added to the body.

        Raises `aiohttp.ClientError` if the stream is cut.
        """
        body = {"model": "words", "messages": [{"role": "user", "content": text}], "stream": True, **fields}
        headers = {"Authorization": f"Bearer {token}"}
        async with (
            ClientSession() as session,
            session.post(f"{self.base_url}/chat/completions", json=body, headers=headers) as response,
        ):
            return Answered(response.status, response.headers, await response.read())

    async def write_usage(self) -> None:
        """Write the usage log into its files, which `services.spent` reads. In a gateway, a process of its own does it."""
        usage = UsageLog(self.store.client, UsageFiles(self.store.usage.folder))
        sink = Sink(usage, retention_months=1, crashed_after_s=3600)
        try:
            while await sink.move_batch():
                pass
        finally:
            sink.home.close()
        self.gateway.services.spending.forget()


def configuration(base_url: str, *plugins: Mapping[str, object]) -> str:
    """Return a complete configuration: the model `words`, served by the upstream at `base_url`, with the shipped plugins.

    `plugins` are inserted between `auth` and `rate-limit`, each as in YAML: `{"use": "office_hours:OfficeHours", "with": {}}`.
    """
    chain = ({"use": "usage-logger"}, {"use": "auth"}, *plugins, *({"use": name} for name in PLUGINS_BELOW))
    document = {
        "channels": {"fake": {"base_url": base_url}},
        "models": {"words": {"input": 1, "output": 2, "max_output_tokens": 100, "channels": ["fake"]}},
        "groups": {"default": {}},
        "store": {"timeout": PATIENT.timeout},
        "plugins": chain,
    }
    return msgspec.json.encode(document).decode()


@asynccontextmanager
async def running(yaml: str, folder: Path, url: str | None = None) -> AsyncIterator[Running]:
    """Run the gateway of a configuration on a free port. Its data is in `folder`, its store as in `services`."""
    file = folder / "gateway.yaml"
    file.write_text(yaml, encoding="utf-8")
    read = schema.load(file)
    loaded = Loaded(msgspec.structs.replace(read.config, data=str(folder / "data")), read.document)
    loaded.config.data_path.mkdir(mode=0o700, exist_ok=True)
    with _store(loaded.config.data_path, url) as address:
        make_pepper(loaded.config.data_path)
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
