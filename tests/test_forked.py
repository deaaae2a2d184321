"""A process that is forked does what one does that is started from nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.forked import FORKED, Forker


def test_it_prints_the_same_and_exits_alike(tmp_path: Path) -> None:
    (tmp_path / "gateway.yaml").write_text("models: ${MODELS}\n")
    command = ("-m", "gateway", "check", "--config", "gateway.yaml")
    runs = [
        subprocess.run([python, *command], cwd=tmp_path, env=os.environ | {"MODELS": "[]"}, capture_output=True)
        for python in (sys.executable, FORKED)
    ]
    assert b"gateway.yaml:1: models" in runs[0].stderr
    assert [(run.returncode, run.stdout, run.stderr) for run in runs] == [(2, runs[0].stdout, runs[0].stderr)] * 2


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere all are started from nothing")
@pytest.mark.parametrize(("environment", "is_forked"), [({}, True), ({"GATEWAY_PURE": "2"}, False)])
def test_it_is_a_child_of_this_process(environment: dict[str, str], is_forked: bool) -> None:
    command = (FORKED, "-m", "gateway", "fake-upstream", "--port", "0")
    with subprocess.Popen(command, env=os.environ | environment, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        folder = Path(f"/proc/{process.pid}")
        assert int((folder / "stat").read_text().rpartition(")")[2].split()[1]) == os.getpid()
        assert (b"tests.forker" in (folder / "cmdline").read_bytes()) == is_forked
        process.terminate()
    assert process.returncode is not None


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere all are started from nothing")
def test_what_one_test_sets_keeps_no_other_from_forking(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before, forker = dict(os.environ), Forker()
    with (tmp_path / "out").open("wb") as out:
        command, fds = [sys.executable, "-m", "gateway", "--version"], [0, out.fileno(), out.fileno()]
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        assert forker.start(command, str(tmp_path), os.environ, False, fds) == 0
        pid = forker.start(command, str(tmp_path), before, False, fds)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert (tmp_path / "out").read_bytes().startswith(b"sluicegate ")
