"""A check ends by itself, with a finding, whatever the plugin does to its process."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gateway.base.errors import GatewayError, Misconfigured
from gateway.plugin_kit import broken, process
from tests.cli.processes import alive
from tests.patience import PATIENCE_S
from tests.plugin_kit import endless

FILE = endless.__file__
ENDLESS = {
    "BlocksInStart": f"process: did not end within 60 s: `start` still runs ({FILE}, line ",
    "BlocksInAChunk": f"process: did not end within 60 s: `on_chunk` still runs ({FILE}, line ",
    "WaitsInEnd": f"process: did not end within 60 s: `on_end` still runs ({FILE}, line ",
    "LeavesAThread": "stop: thread Thread-",
    "LeavesAWorker": "stop: thread asyncio_",
    "LeavesAProcess": "start: does not start: RuntimeError: process ",
    "ExitsAtOnce": "process: ended its process with exit code 0",
    "Crashes": "process: ended its process with signal SIGKILL",
    "InterruptsItself": "process: ends with KeyboardInterrupt",
    "ExitsInATask": f"process: ends with SystemExit: 3 ({FILE}, line ",
    "CancelsAll": "process: ends with CancelledError",
    "SaysWhatIsNoText": "start: does not start: RuntimeError: \\ud800 (",
}


def check(name: str) -> list[str]:
    return broken(process.check(f"tests.plugin_kit.endless:{name}", {}, headers={}))


@pytest.mark.parametrize("name", ENDLESS)
def test_a_check_ends_with_a_finding(name: str) -> None:
    found = check(name)
    assert [text.startswith(ENDLESS[name]) for text in found] == [True], found


def test_a_module_that_never_ends_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "endless_module.py").write_text("import time\nwhile True:\n    time.sleep(60)\n")
    monkeypatch.setattr(process, "LIMIT_S", 0.5)
    monkeypatch.setattr(process, "KILLED_AFTER_S", PATIENCE_S)
    (found,) = broken(process.check("endless_module:Any", {}, headers={}))
    assert found.startswith("process: did not end within 0.5 s")
    assert "interrupted" not in found


def test_a_process_that_cannot_be_interrupted_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process._Run, "_overdue", lambda *_: None)
    monkeypatch.setattr(process, "LIMIT_S", 0.1)
    monkeypatch.setattr(process, "KILLED_AFTER_S", 0.1)
    assert check("BlocksInStart") == ["process: did not end within 0.1 s, and is busy with what cannot be interrupted"]


def test_what_a_plugin_started_ends_with_the_check() -> None:
    (found,) = check("LeavesAProcess")
    (pid,) = re.findall(r"process (\d+) runs", found)
    assert not alive(int(pid))


def test_an_unknown_plugin_or_setting_is_an_error() -> None:
    with pytest.raises(GatewayError, match="has no `Nobody`"):
        check("Nobody")
    with pytest.raises(Misconfigured, match="most: must be a whole number"):
        process.check("tests.faulty:Good", {"most": "many"}, headers={})
