"""Fixtures: a whole gateway on a real socket, with a real store and a fake upstream behind it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser

from gateway.fake_upstream import FakeUpstream
from gateway.testing import Running, running
from tests.patience import PATIENCE_S
from tests.whole.browser import launched
from tests.whole.operated import Operated, operated

CHAIN = """
plugins:
  - use: usage-logger
  - use: auth
  - use: rate-limit
    with: {requests_per_minute: 1000, tokens_per_minute: 1000000, concurrent: 50}
  - use: quota
  - use: model-routing
"""


Serve = Callable[..., AbstractAsyncContextManager[Running]]


def configuration(
    base_url: str, *, chain: str = CHAIN, channel: str = "", more: str = "", store_timeout: float = PATIENCE_S
) -> str:
    """Return YAML with the whole chain, one channel with a credential, and its models.

    `channel` is appended to the channel's settings, `more` to the file. A test that stops the store sets `store_timeout`. Unless
    `channel` says otherwise, no answer is read on when its caller leaves: scripted upstreams never end many of theirs.
    """
    if "on_caller_gone" not in channel:
        channel += ", on_caller_gone: cancel"
    return f"""
channels:
  fake: {{base_url: "{base_url}", api_key: channel-credential-4711{channel}}}
models:
  words: {{input: 1, output: 2, max_output_tokens: 100, channels: [fake]}}
  other: {{input: 1, output: 2, max_output_tokens: 100, channels: [{{use: fake, model: renamed}}]}}
  hidden: {{free: true, channels: [fake]}}
groups:
  default: {{models: [words, other]}}
  closed: {{enabled: false}}
store: {{timeout: {store_timeout}}}
{more}
{chain}
"""


@pytest.fixture
async def upstream() -> AsyncIterator[FakeUpstream]:
    """Yield an upstream that responds at once."""
    async with FakeUpstream(pace_s=0, key="channel-credential-4711") as fake:
        yield fake


@pytest.fixture
def serve(store_url: str, tmp_path: Path) -> Serve:
    """A function that runs a gateway with an empty store. Its arguments are those of `configuration`."""
    return lambda *upstream, **more: running(configuration(*upstream, **more), tmp_path, store_url)


@pytest.fixture
async def gateway(upstream: FakeUpstream, serve: Serve) -> AsyncIterator[Running]:
    """Yield a gateway in front of `upstream`, with an empty store."""
    async with serve(upstream.base_url) as whole:
        yield whole


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    """Yield a browser, one for all tests of a module, which run in the module's loop."""
    async with launched() as running_browser:
        yield running_browser


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Operated]:
    """Yield a whole gateway with its pages, one for all tests of a module, which run in the module's loop."""
    async with operated(tmp_path_factory.mktemp("house")) as serving:
        yield serving
