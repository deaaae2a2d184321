"""What the hour of randomized life takes for growth: memory that a process allocates, and not pages that it ceases to share."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest

from tests.bench.life.leftovers import Resources
from tests.bench.process import ROOT

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
