"""A desk with a real store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from gateway.config.schema import load
from gateway.management.desk import Actor, LocalDesk
from gateway.services import Store
from tests.patience import PATIENCE_S

CONFIG = """\
redis: {url}
data: {folder}
store: {{timeout: {timeout}}}
groups: {{default: {{}}, trial: {{budgets: {{month: 5, requests: 9}}}}, old: {{enabled: false}}}}
"""

DeskWith = Callable[[str], LocalDesk]


@pytest.fixture
async def desk_with(tmp_path: Path, store_url: str) -> AsyncIterator[DeskWith]:
    """A function that returns a desk where an operation is done that may be repeated with a key."""
    file = tmp_path / "gateway.yaml"
    file.write_text(CONFIG.format(url=store_url, folder=tmp_path, timeout=PATIENCE_S))
    loaded = load(file)
    (tmp_path / "store").mkdir()
    async with Store.open(loaded.config, store_url) as store:
        yield lambda key: LocalDesk(loaded, store, Actor("test"), key)


@pytest.fixture
def desk(desk_with: DeskWith) -> LocalDesk:
    """A desk where no operation is repeated."""
    return desk_with("")
