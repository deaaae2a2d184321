"""The line that shows how far a command is."""

from __future__ import annotations

import pytest

from gateway.cli import common as module
from gateway.cli.common import progress


def test_a_terminal_shows_the_line_and_removes_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setattr(module, "PAUSE_S", 0)
    with progress() as show:
        show("10 accounts")
        show("20 accounts")
    shown = capsys.readouterr().err
    assert shown == "\r\x1b[K10 accounts, 0 s\r\x1b[K20 accounts, 0 s\r\x1b[K"


def test_a_file_gets_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with progress() as show:
        show("10 accounts")
    assert capsys.readouterr().err == ""
