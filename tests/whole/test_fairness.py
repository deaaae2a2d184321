"""One caller at its worst, for a second, while another is served every time.

These are the rows of the table whose shared thing can refuse the second caller: a count shows it, on any machine. In the other
rows the second caller can only be served later, which a count does not show: an event loop, a store, a disk, memory, log lines,
connections that are opened and closed, the operator's port. `python -m tests.bench.fairness` measures those, and how soon the
second caller is served in these.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from subprocess import PIPE, Popen

import pytest

from tests.bench.fairness.measure import measure
from tests.bench.fairness.rows import ROWS, Row
from tests.bench.fairness.stage import prepare, staged
from tests.bench.process import ROOT
from tests.forked import FORKED
from tests.patience import PATIENCE_S

PHASE_S = 1.0
QUIET_S = 0.1
REFUSING = (
    *("flagged", "error-event", "broken", "too-large", "limited", "other-model", "probe"),  # the circuit breaker
    "credentials",  # a credential that the upstream refuses is set aside
    *("body-budget", "half-bodies"),  # the memory for bodies
    *("half-heads", "idle"),  # connections
    *("wrong-tokens", "wrong-tokens-same-address"),  # the limits of an address
    "channel-slots",  # the limits of a channel
)


@pytest.fixture(scope="module")
def accounts(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """Make a data folder with accounts; return it and the tokens."""
    folder = tmp_path_factory.mktemp("accounts")
    return folder, prepare(folder)


@pytest.fixture(scope="module")
def ports() -> Iterator[tuple[int, int]]:
    """Run the upstreams of the second and of the first caller."""
    command = (FORKED, "-m", "tests.bench.fairness.upstream")
    with ExitStack() as stack:
        started = [stack.enter_context(Popen(command, stdin=PIPE, stdout=PIPE, cwd=ROOT)) for _ in range(2)]
        one, other = (int(each.stdout.readline()) for each in started if each.stdout is not None)
        yield one, other
        for each in started:
            each.terminate()


@pytest.mark.parametrize("row", [row for row in ROWS if row.name in REFUSING], ids=lambda row: row.name)
async def test_a_second_caller_is_served_every_time(
    row: Row, accounts: tuple[Path, dict[str, str]], ports: tuple[int, int], tmp_path: Path
) -> None:
    template, tokens = accounts
    async with staged(row, tmp_path / "row", template, tokens, ports, store_timeout=PATIENCE_S) as stage:
        measured = await measure(stage, rounds=1, phase_s=PHASE_S, quiet_s=QUIET_S)
    assert measured.beside.served > 0
    assert (measured.beside.refused, measured.said) == (0, {})
