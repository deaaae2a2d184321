"""A command whose output is closed before its end goes away without noise, as by SIGPIPE."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.processes import demo_in
from tests.records import arrival, end, usage_database


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return the configuration of a gateway with a long usage log."""
    rows = usage_database(tmp_path / "data" / "usage")
    rows.write([end(arrival()) for _ in range(300)])
    rows.close()
    return demo_in(tmp_path)


@pytest.mark.parametrize("command", ["usage export", "usage list", "--help"])
async def test_a_reader_that_leaves_ends_a_command_without_noise(file: Path, command: str) -> None:
    config = () if command == "--help" else ("--config", str(file))
    reader, output = os.pipe()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway", *command.split(), *config), stdout=output, stderr=subprocess.PIPE
    )
    os.close(output)
    os.close(reader)
    assert process.stderr is not None
    assert await process.stderr.read() == b""
    assert await process.wait() == -signal.SIGPIPE


def test_a_shell_sees_the_first_line_and_the_convention(file: Path) -> None:
    command = f"'{sys.executable}' -m gateway usage export --config '{file}' | head -1; echo ${{PIPESTATUS[0]}}"
    run = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    first, status = run.stdout.splitlines()
    assert first.startswith('{"id":')
    assert (status, run.stderr) == ("141", "")


@pytest.mark.skipif(sys.platform != "linux", reason="Linux has a device that is always full")
def test_an_output_that_accepts_no_more_is_an_error_in_a_line(file: Path) -> None:
    command = f"'{sys.executable}' -m gateway usage export --config '{file}' > /dev/full"
    run = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
    said = "gateway: standard output: No space left on device; the output is not whole\n"
    assert (run.returncode, run.stderr) == (1, said)


def test_all_of_an_output_is_written(file: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "gateway", "usage", "export", "--config", str(file)], capture_output=True, text=True
    )
    assert (run.returncode, run.stderr, run.stdout.count("\n")) == (0, "", 300)


def test_without_any_output_a_command_ends_as_it_would() -> None:
    run = subprocess.run(["sh", "-c", f"'{sys.executable}' -m gateway --version >&-"], capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, "")
