"""Two minutes of randomized life: callers, upstreams, edits, kills and faults of many kinds, judged by the contract.

`LIFE_SECONDS=3600 LIFE_SEED=7 pytest tests/whole/test_life.py -s` runs the longer form; see `python -m tests.bench.life --help`.
"""

from __future__ import annotations

import asyncio
import os
import sys

import pytest

from tests.bench.process import ROOT

SECONDS = float(os.environ.get("LIFE_SECONDS", "100"))
SEED = int(os.environ.get("LIFE_SEED", "4"))
RATE = "12"
"""Visits a second: other tests run at the same time."""
MARGIN_S = 300.0
"""Time for the start, the leases of killed workers, and the judgement, on a busy machine."""


@pytest.mark.skipif(sys.platform != "linux", reason="the processes of a gateway are read from /proc")
async def test_two_minutes_of_life_agree_with_the_contract() -> None:
    command = (sys.executable, "-m", "tests.bench.life", "--seconds", str(SECONDS), "--seed", str(SEED), "--rate", RATE)
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=asyncio.subprocess.PIPE)
    try:
        out, _ = await asyncio.wait_for(process.communicate(), SECONDS + MARGIN_S)
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()
    assert process.returncode == 0, out.decode()
