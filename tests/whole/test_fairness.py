"""One caller at its worst, for a second or two, while another is served every time. `tests.bench.fairness` measures how soon."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.bench.fairness.measure import measure
from tests.bench.fairness.rows import ROWS, Row
from tests.bench.fairness.stage import prepare, staged, upstreams
from tests.patience import PATIENCE_S

PHASE_S = 1.0
HEALTH = {"flagged", "error-event", "broken", "too-large", "limited", "other-model", "credentials"}
"""One caller's failures at an upstream cool the channel for every caller."""


@pytest.fixture(scope="module")
def accounts(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """Make a data folder with accounts; return it and the tokens."""
    folder = tmp_path_factory.mktemp("accounts")
    return folder, prepare(folder)


@pytest.fixture
async def ports() -> AsyncIterator[tuple[int, int]]:
    """Run the upstreams."""
    async with upstreams() as ports:
        yield ports


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(row, id=row.name, marks=[pytest.mark.xfail(reason="cools for all")] if row.name in HEALTH else [])
        for row in ROWS
    ],
)
async def test_a_second_caller_is_served_every_time(
    row: Row, accounts: tuple[Path, dict[str, str]], ports: tuple[int, int], tmp_path: Path
) -> None:
    template, tokens = accounts
    async with staged(row, tmp_path / "row", template, tokens, ports, store_timeout=PATIENCE_S) as stage:
        measured = await measure(stage, rounds=1, phase_s=PHASE_S)
    assert measured.beside.served > 0
    assert (measured.beside.refused, measured.said) == (0, {})
