"""Two minutes of randomized life: callers, upstreams, edits, kills and faults of many kinds, judged by the contract.

`LIFE_SECONDS=3600 LIFE_SEED=7 pytest tests/whole/test_life.py -s` runs the longer form; see `python -m tests.bench.life --help`.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway import Outcome
from gateway.usage.record import Record
from tests.bench.life.answers import Served
from tests.bench.life.leftovers import Resources
from tests.bench.life.oracle import Oracle
from tests.bench.life.plan import plan
from tests.bench.life.seen import Injection, Saw, Seen, Timeline
from tests.bench.life.upstreams import Upstreams
from tests.bench.life.world import World
from tests.bench.process import ROOT
from tests.records import arrival, end

SECONDS = float(os.environ.get("LIFE_SECONDS", "100"))
SEED = int(os.environ.get("LIFE_SEED", "4"))
RATE = "12"
"""Visits of callers a second: other tests run at the same time."""
MARGIN_S = 300.0
"""Time for the start, the leases of killed workers, and the judgement, on a busy machine."""

PRICE = {"input": 1_000_000, "output": 2_000_000, "ratio": "1"}
CALLER_SAW = Seen("life-1", "keeps alive", "words", 10, ended=11, status=200, saw=Saw.WHOLE, finish=True, events=9)
RECORD = {"prompt_tokens": 5, "completion_tokens": 3, "charge_micros": 11, "price": PRICE, "status": 200}


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


def test_a_plan_follows_from_its_seed() -> None:
    assert plan(7, 300, 20) == plan(7, 300, 20) != plan(8, 300, 20)


def problems(
    seen: dict[str, Any], record: dict[str, Any] | None, *injections: Injection, rows: int = 1, served: bool = True
) -> list[str]:
    """Return what the oracle finds wrong with a request that was answered in full, with these differences."""
    records: list[Record] = [end(arrival(), **RECORD | (record or {}))] * rows
    what = msgspec.structs.replace(CALLER_SAW, **{"id": records[0].id} | seen)
    world = World(Path(), 0, Upstreams(), Timeline())
    world.timeline.injections += injections
    if served:
        account = Served(what.tag, what.model, 0, 10, 200, False, output=3, output_bytes=18, told=(5, 3), final=True)
        account.begun = account.finished = True
        world.upstreams.served[what.tag] = [account]
    logged = {} if record is None else {records[0].id: records}
    return list(Oracle(world, logged, {what.model: {(1_000_000, 2_000_000)}}).problems(what))


def refused(status: int, code: str, **more: Any) -> dict[str, Any]:
    return {"saw": Saw.ERROR, "status": status, "code": code, "finish": False, "retry_after": "1000"} | more


FREE = {"charge_micros": 0, "price": {}}
AWAY = {"outcome": Outcome.REFUSED, "status": 503, "error_code": "service_unavailable"} | FREE
CUT = {"saw": Saw.CUT, "finish": False}
CRASHED = {"outcome": Outcome.GATEWAY_CRASHED, "charge_micros": 0}
KILLED = Injection("worker killed", 10.5, 10.5)


def test_the_oracle_accepts_what_the_contract_allows() -> None:
    assert problems({}, {}) == []
    assert problems(refused(503, "service_unavailable"), AWAY, Injection("store away", 9, 10), served=False) == []
    assert problems(CUT, CRASHED, KILLED) == []
    assert problems({"saw": Saw.LEFT, "finish": False}, {"outcome": Outcome.CALLER_GONE}) == []


@pytest.mark.parametrize(
    ("seen", "record", "what"),
    [
        ({}, None, "no record"),
        ({}, {"charge_micros": 12}, "charge: 12 micros"),
        ({}, {"charge_micros": 0}, "charge: 0 micros"),
        ({}, {"price": PRICE | {"input": 2_000_000}}, "charge: a price that the model never had"),
        ({}, {"outcome": Outcome.CALLER_GONE}, "outcome: caller_gone"),
        ({"saw": Saw.LEFT, "finish": False}, {"outcome": Outcome.CALLER_GONE, "charge_micros": 9}, "charge: 9 micros"),
        *((CUT, {}, "not allowed: words gave cut off"), (CUT, {}, "outcome: completed")),
        *((CUT, CRASHED, "outcome: gateway_crashed"), ({"saw": Saw.HANG}, {}, "hang")),
        ({"saw": Saw.NOTHING, "status": 0, "id": ""}, {}, "not allowed: words gave no answer"),
        ({"finish": False}, {}, "whole without a finish"),
        (refused(500, "internal_error"), AWAY, "internal error"),
        (refused(503, "service_unavailable"), AWAY, "not allowed: words gave 503 service_unavailable"),
        (refused(503, "service_unavailable", retry_after=""), AWAY, "no Retry-After"),
        (refused(503, "service_unavailable"), AWAY | {"status": 401}, "record says 401"),
        (refused(503, "service_unavailable"), AWAY | {"charge_micros": 1, "price": PRICE}, "charge: 1 micros"),
    ],
)
def test_the_oracle_finds(seen: dict[str, Any], record: dict[str, Any] | None, what: str) -> None:
    found = problems(seen, record)
    assert any(each.startswith(what) for each in found), found


def test_the_oracle_finds_an_id_with_two_records() -> None:
    assert problems({}, {}, rows=2) == ["2 records of one id"]


MIB = 1024
"""In KiB."""
PROCESS = """
import os, signal
from tests.bench.process import anonymous_kib, resident_kib

def measure():
    print(anonymous_kib(os.getpid()), resident_kib([os.getpid()]))

memory = bytearray(b"x" * (32 << 20))
child = os.fork()
if child == 0:
    signal.pause()
measure()
for page in range(0, len(memory), 4096):
    memory[page] = 1
measure()
os.kill(child, signal.SIGKILL)
os.waitpid(child, 0)
measure()
kept = bytearray(b"y" * (16 << 20))
measure()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the memory of a process is read from /proc")
def test_memory_grows_where_it_is_allocated_and_not_where_it_ceases_to_be_shared() -> None:
    command = [sys.executable, "-c", PROCESS]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60).stdout
    (first, shared), (copied, own), (alone, _), (kept, _) = (map(int, line.split()) for line in printed.splitlines())
    assert own > shared + 12 * MIB, "the part of the memory that counts as its own has grown"
    assert abs(copied - first) < MIB
    assert abs(alone - first) < MIB
    assert 15 * MIB < kept - first < 18 * MIB


def test_growth_is_found_in_each_process_by_itself() -> None:
    first = Resources(parent_kib=52 * MIB, worker_kib=58 * MIB, tasks=11, sockets=8)
    level = msgspec.structs.replace(first, parent_kib=53 * MIB, worker_kib=64 * MIB, tasks=13, sockets=10)
    assert level.growth(first) == []
    for more, what in {
        "parent_kib": "memory of the parent",
        "worker_kib": "memory of the worker",
        "tasks": "tasks",
        "sockets": "sockets",
    }.items():
        grown = msgspec.structs.replace(first, **{more: getattr(first, more) + 10 * MIB})
        assert [each.partition(":")[0] for each in grown.growth(first)] == [what]
