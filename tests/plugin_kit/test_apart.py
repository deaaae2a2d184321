"""A check ends by itself, with a finding, whatever the plugin does to its process."""

from __future__ import annotations

import re

import pytest

from gateway.base.errors import GatewayError, Misconfigured
from gateway.plugin_kit import broken, process
from tests.cli.processes import alive
from tests.plugin_kit import endless

FILE = endless.__file__
ENDLESS = {
    "LeavesAProcess": "start: does not start: RuntimeError: process ",
    "ExitsAtOnce": "process: ended its process with exit code 0",
    "Crashes": "process: ended its process with signal SIGKILL",
    "InterruptsItself": "process: ends with KeyboardInterrupt",
    "ExitsInATask": "process: ends with SystemExit: 3",
    "CancelsAll": "process: ends with CancelledError",
    "SaysWhatIsNoText": "start: does not start: RuntimeError: \\ud800 (",
}
LEAVES = ("LeavesAThread", "LeavesAWorker")


def check(name: str) -> list[str]:
    return broken(process.check(f"tests.plugin_kit.endless:{name}", {}, headers={}, body={}))


@pytest.mark.parametrize("name", ENDLESS)
def test_a_check_ends_with_a_finding(name: str) -> None:
    found = check(name)
    assert [text.startswith(ENDLESS[name]) for text in found] == [True], found


@pytest.mark.parametrize("name", LEAVES)
def test_what_a_plugin_leaves_running_does_not_keep_a_check_from_ending(name: str) -> None:
    assert check(name) == []


def test_a_check_that_takes_too_long_is_killed_and_says_where_it_was(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(process, "LIMIT_S", 3.0)
    assert check("BlocksInStart") == [
        "process: did not end within 3 s: the standard error has the lines that it was at"
    ]
    assert f'File "{FILE}", line ' in capfd.readouterr().err


def test_what_a_plugin_started_ends_with_the_check() -> None:
    (found,) = check("LeavesAProcess")
    (pid,) = re.findall(r"process (\d+) runs", found)
    assert not alive(int(pid))


def test_an_unknown_plugin_or_setting_is_an_error() -> None:
    with pytest.raises(GatewayError, match="has no `Nobody`"):
        check("Nobody")
    with pytest.raises(Misconfigured, match="most: must be a whole number"):
        process.check("tests.faulty:Good", {"most": "many"}, headers={}, body={})
