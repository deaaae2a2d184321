"""A local client of actions with a real store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from gateway.admin.actions.action import Actor
from gateway.admin.actions.local import LocalClient
from gateway.chain.services import Store
from gateway.config.schema import load
from gateway.usage.database import UsageFiles
from tests.patience import PATIENCE_S
from tests.records import usage_database

CONFIG = """\
redis: {url}
data: {folder}
store: {{timeout: {timeout}}}
groups: {{default: {{}}, trial: {{budgets: {{month: 5, requests: 9}}}}, old: {{enabled: false}}}}
channels:
  one: {{base_url: http://127.0.0.1:9/v1, api_keys: [canary-4711, canary-4712], timers: {{connect: 1}}}}
  two: {{base_url: http://127.0.0.1:9/v1}}
models:
  gpt-4o-mini: {{input: 0.15, output: 0.6, channels: [{{use: one, model: mini, cost: {{input: 0.1, output: 0.4}}}}]}}
plugins: [{{use: quota}}, {{use: not-installed, name: other, enabled: false}}]
"""

LocalClientWith = Callable[[str], LocalClient]


@pytest.fixture
async def local_client_with(tmp_path: Path, store_url: str) -> AsyncIterator[LocalClientWith]:
    """A function that returns a local client, whose actions may be repeated with a key."""
    file = tmp_path / "gateway.yaml"
    file.write_text(CONFIG.format(url=store_url, folder=tmp_path, timeout=PATIENCE_S))
    loaded = load(file)
    (tmp_path / "store").mkdir()
    async with Store.open(loaded.config, store_url) as store:
        yield lambda key: LocalClient(loaded, store, Actor("test"), key)


@pytest.fixture
def local_client(local_client_with: LocalClientWith) -> LocalClient:
    """A local client whose actions have no key."""
    return local_client_with("")


@pytest.fixture
def rows(local_client: LocalClient) -> Iterator[UsageFiles]:
    """The usage log that the local client reads."""
    database = usage_database(local_client.store.usage.folder)
    yield database
    database.close()
