"""Each record is one line, whatever library wrote it and whatever its values are."""

from __future__ import annotations

import json
import logging
import re
import time
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


def test_a_terminal_shows_the_local_time_in_colours_unless_no_color_is_set(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in (("NO_COLOR", ""), ("NO_COLOR", "1"), ("TERM", "dumb")):
        monkeypatch.setenv(name, value)
        logs.configure(json=False)
        structlog.get_logger("x").warning("store_away", reason="gone")
        monkeypatch.undo()
    coloured, *plain = lines(capsys)
    assert "\x1b[" in coloured
    for line in plain:
        assert re.fullmatch(r"\d\d:\d\d:\d\d \[warning *\] store_away +reason=gone", line)


def test_a_terminal_shows_amounts_in_units_of_the_currency(capsys: pytest.CaptureFixture[str]) -> None:
    for as_json in (False, True):
        logs.configure(json=as_json)
        structlog.get_logger("x").info("charge_capped", charged_micros=25)
    for_people, for_programs = lines(capsys)
    assert "0.000025" in for_people
    assert "micros" not in for_people
    assert '"charged_micros": 25' in for_programs


def test_what_the_welcome_says_in_words_has_no_line_on_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    for as_json in (False, True):
        logs.configure(json=as_json)
        structlog.get_logger("x").info("event_path", compiled=True)
    (line,) = lines(capsys)
    assert '"event_path"' in line


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
def test_a_traceback_shows_no_local_variables_and_no_token(as_json: bool, capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(json=as_json)
    token, local = "sk-canary-" + "0123456789", "of this " + "function alone"
    try:
        raise RuntimeError(f"Bearer {token}, {len(local)} letters")
    except RuntimeError as error:
        structlog.get_logger("x").exception("failed", reason=str(error))
        logging.getLogger("x").exception("failed with %s", error)
    written = capsys.readouterr().err
    assert written.count("Bearer sk-[hidden], 22 letters") == 4
    assert token not in written
    assert local not in written


def test_lines_that_repeat_are_left_out_and_counted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    logs.configure(json=True)
    log = structlog.get_logger("x")
    for number in range(500):
        log.warning("store_away", request_id=str(number))
    log.warning("upstream_unreachable", channel="a")
    assert len(lines(capsys)) == logs.BURST + 1
    now[0] += 1
    log.warning("store_away")
    log.warning("store_away")
    (line,) = lines(capsys)
    assert json.loads(line)["left_out"] == 500 - logs.BURST


def test_lines_of_other_kinds_and_those_that_name_a_charge_are_written(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(json=True)
    for number in range(3 * logs.BURST):
        structlog.get_logger("x").error("upstream_unreachable", channel=f"channel-{number % 3}")
        structlog.get_logger("x").error("journal_not_written", request_id=str(number))
    assert len(lines(capsys)) == 2 * 3 * logs.BURST


def test_lines_of_a_library_that_differ_in_their_values_are_of_one_kind(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(json=True)
    for number in range(3 * logs.BURST):
        logging.getLogger("aiohttp.server").error("Error %s", number)
    written = lines(capsys)
    assert len(written) == logs.BURST
    assert json.loads(written[0])["event"] == "Error 0"
    assert "_format" not in written[0]
