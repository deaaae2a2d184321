"""What a reload replaces is freed when its last exchange has ended, without waiting for the garbage collector."""

from __future__ import annotations

import asyncio
import gc
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from gateway.runtime.reload import Reloader
from gateway.store.client.client import Client
from gateway.testing import Running, running
from tests.patience import PATIENCE_S, wait_until
from tests.whole.raw import ask, chat
from tests.whole.scripted import Scripted
from tests.whole.test_upstream_tls import GOOD, certificates, context

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl command")
__all__ = ["certificates"]

ROUNDS = 12
OURS = (
    "gateway",
    "plugins",
    "aiohttp.client",
    "aiohttp.connector",
    "aiohttp.resolver",
    "ssl",
    "asyncio.sslproto",
    "importlib",
)
OF_CALLERS = ("gateway.server",)
"""The connections of callers, which are not of a reload."""


@pytest.fixture
def uncollected() -> Iterator[None]:
    """Switch the garbage collector off."""
    yield
    gc.enable()


def counted() -> Counter[str]:
    """Return how many objects of the gateway, and of what it calls upstreams with, are in memory, by type."""
    names = Counter(f"{type(each).__module__}.{type(each).__qualname__}" for each in gc.get_objects())
    return Counter(
        {name: count for name, count in names.items() if name.startswith(OURS) and not name.startswith(OF_CALLERS)}
    )


def numbered(number: int, base_url: str, ca_file: Path) -> str:
    """Return a configuration whose channel, model and credential have this number."""
    return f"""
channels:
  secret{number}: {{base_url: "{base_url}", api_key: credential-{number}, ca_file: {ca_file}}}
models:
  words{number}: {{input: 1, output: 2, max_output_tokens: 100, channels: [secret{number}]}}
groups:
  default: {{models: ["*"]}}
plugins:
  - use: usage-logger
  - use: auth
  - use: rate-limit
    with: {{requests_per_minute: {1000 + number}}}
  - use: quota
  - use: model-routing
"""


@pytest.mark.usefixtures("uncollected")
async def test_reloads_with_other_channels_credentials_and_authorities_leave_no_objects(
    store_url: str, client: Client, tmp_path: Path, certificates: Path
) -> None:
    authorities = tmp_path / "authorities.pem"
    authority = (certificates / "ca.pem").read_bytes()
    authorities.write_bytes(authority)
    async with (
        Scripted(GOOD, tls=context(certificates)) as upstream,
        running(numbered(0, upstream.base_url, authorities), tmp_path, store_url) as gateway,
        Reloader(gateway.gateway, tmp_path / "gateway.yaml") as reloader,
    ):
        token = await gateway.token()

        async def reload(numbers: range) -> None:
            for number in numbers:
                authorities.write_bytes(authority + b"# %d\n" % number)
                (tmp_path / "gateway.yaml").write_text(numbered(number, upstream.base_url, authorities))
                assert await reloader.run_once()
                assert (await ask(gateway.port, chat(token, {"model": f"words{number}"}))).status == 200
                await settled(gateway, reloader)

        await reload(range(1, 4))
        gc.collect()
        gc.disable()
        before = counted()
        await reload(range(4, 4 + ROUNDS))
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                while grown(before):
                    await asyncio.sleep(0.05)
        assert grown(before) == {}


def grown(before: Counter[str]) -> dict[str, int]:
    """Return of which types there are more now: one for about each reload."""
    return {name: more for name, more in (counted() - before).items() if more >= ROUNDS / 2}


async def settled(gateway: Running, reloader: Reloader) -> None:
    """Wait until the chains before are stopped."""
    await wait_until(lambda: not reloader._retiring and gateway.gateway.runner.open == 0)
    await asyncio.sleep(0)
