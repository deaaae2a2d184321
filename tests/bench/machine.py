"""The machine, the commit and the versions of a measurement."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from tests.bench.process import ROOT


def commit(checkout: Path = ROOT) -> str:
    """Return the commit that is checked out, with a plus if files differ from it."""
    words = ["git", "describe", "--always", "--dirty=+", "--exclude=*"]
    return subprocess.run(words, capture_output=True, text=True, cwd=checkout, check=False).stdout.strip()


def machine() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next((line.partition(":")[2].strip() for line in lines if "model name" in line), platform.machine())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{cpu}, {os.cpu_count()} cores, {memory:.0f} GiB, Linux {platform.release()}"


def versions() -> str:
    packages = ", ".join(f"{name} {version(name)}" for name in ("aiohttp", "uvloop", "httptools", "hiredis", "msgspec"))
    return f"Python {platform.python_version()}, {packages}"


def python_version(program: str) -> str:
    """Return the version of a Python and how it was built."""
    asked = "import platform; print(platform.python_version(), *platform.python_build(), platform.python_compiler())"
    return subprocess.run([program, "-c", asked], capture_output=True, text=True, check=True).stdout.strip()


def now_utc() -> str:
    return f"{datetime.now(UTC):%Y-%m-%d %H:%M}"


def busy() -> float:
    """Return the load average of the last minute."""
    return round(os.getloadavg()[0], 1)
