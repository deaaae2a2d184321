"""Of two gateways with one data folder, the second is refused at once and says which process the first is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.base.errors import GatewayError, Misconfigured
from gateway.serve.serve import NAME, InstanceLock

SECOND = "import sys, pathlib; from gateway.serve.serve import InstanceLock; InstanceLock(pathlib.Path(sys.argv[1]))"


def second(folder: Path) -> str:
    """Return the error of a claim by another process, empty if it succeeds."""
    ended = subprocess.run(
        [sys.executable, "-c", SECOND, str(folder)], capture_output=True, text=True, check=False, timeout=60
    )
    return ended.stderr


def test_a_second_process_is_refused_until_the_first_ends(tmp_path: Path) -> None:
    claim = InstanceLock(tmp_path)
    if os.fork() == 0:  # a child does not hold the lock, nor release it when it ends
        os._exit(0)
    os.wait()
    said = second(tmp_path)
    assert f"data: this very gateway already runs (pid {os.getpid()}, since 20" in said
    assert f"with {tmp_path}: stop it" in said
    claim.release()
    assert second(tmp_path) == ""
    assert (tmp_path / NAME).exists()


def test_a_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / NAME).mkdir()
    with pytest.raises(GatewayError, match=f"data: cannot use {tmp_path}/{NAME}: Is a directory") as refused:
        InstanceLock(tmp_path)
    assert isinstance(refused.value, Misconfigured)
