"""Each record is one line, whatever library wrote it and whatever its values are."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from gateway.runtime import logs


@pytest.fixture(autouse=True)
def restore() -> Iterator[None]:
    """Restore the logging of the process after each test."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    structlog.reset_defaults()
    root.handlers[:], root.level = handlers, level


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().err.splitlines()


def test_a_record_is_one_line_of_json(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(json=True)
    structlog.get_logger("x").warning("store_away", reason="a\nb\x1b[31m\u2028", count=3)
    (line,) = lines(capsys)
    record = json.loads(line)
    assert record.pop("timestamp").endswith("Z")
    assert record == {"event": "store_away", "level": "warning", "reason": "a\\nb\\x1b[31m\\u2028", "count": 3}


def test_a_value_cannot_forge_a_line_on_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(json=False)
    structlog.get_logger("x").info("event\n2026-01-01 [info] forged", path="/a\x1b[2Jb\rc")
    (line,) = lines(capsys)
    assert "\x1b[2J" not in line
    assert "\\x1b[2Jb\\rc" in line


def test_a_long_value_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(json=True)
    structlog.get_logger("x").info("x" * 10_000, body="y" * 10_000)
    record = json.loads(lines(capsys)[0])
    assert record["body"] == "y" * 2000 + "..."
    assert len(record["event"]) == 2003


def test_records_below_the_level_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(json=True)
    structlog.get_logger("x").debug("chatter")
    logging.getLogger("aiohttp").info("chatter")
    assert lines(capsys) == []


def test_records_of_libraries_have_the_same_form(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(json=True)
    logging.getLogger("aiohttp.server").error("Error %s", "here")
    record = json.loads(lines(capsys)[0])
    assert (record["event"], record["level"]) == ("Error here", "error")


@pytest.mark.parametrize("as_json", [True, False])
def test_a_traceback_shows_no_local_variables(as_json: bool, capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(json=as_json)
    token = "sk-canary-" + "0123456789"
    try:
        raise RuntimeError(f"{len(token)} letters")
    except RuntimeError:
        structlog.get_logger("x").exception("failed")
        logging.getLogger("x").exception("failed, too")
    written = capsys.readouterr().err
    assert written.count("RuntimeError: 20 letters") == 2
    assert token not in written
