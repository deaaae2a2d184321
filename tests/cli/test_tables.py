"""Tables as people read them."""

from __future__ import annotations

import pytest

from gateway.cli.tables import print_fields, print_table, width_of

COLUMNS = ("id", "model")
ROWS = [("alice", "小さい"), ("bob", "m")]


def test_a_line_ends_with_its_last_letter(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(COLUMNS, ROWS, empty="none")
    assert capsys.readouterr().out == "id     model\nalice  小さい\nbob    m\n"
    print_fields({"a": "one", "long name": "two\nlines", "empty": ""})
    assert capsys.readouterr().out == "a          one\nlong name  two\n           lines\nempty\n"
    print_table(COLUMNS, [], empty="There are none.")
    assert capsys.readouterr().out == "There are none.\n"


def test_letters_of_east_asia_take_two_columns() -> None:
    assert width_of(COLUMNS, ROWS) == len("alice  ") + 6


def test_a_terminal_gets_a_bold_heading_and_total_unless_no_color_is_set(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    print_table(COLUMNS, ROWS, empty="", total=True)
    heading, first, last = capsys.readouterr().out.splitlines()
    assert [line.startswith("\x1b[1m") for line in (heading, first, last)] == [True, False, True]
    monkeypatch.setenv("NO_COLOR", "1")
    print_table(COLUMNS, ROWS, empty="", total=True)
    assert "\x1b" not in capsys.readouterr().out


def test_a_narrow_terminal_drops_the_least_important_columns_and_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [("alice", "x" * 30, "y" * 30, "z" * 30)]
    for columns, left_out in (("200", ()), ("80", ("two",)), ("60", ("two", "three"))):
        monkeypatch.setenv("COLUMNS", columns)
        print_table(("id", "one", "two", "three"), rows, optional=("two", "three"), empty="")
        printed = capsys.readouterr()
        assert max(map(len, printed.out.splitlines())) <= int(columns)
        assert not set(left_out).intersection(printed.out.split())
        note = f"note: too wide for {', '.join(left_out)}; --json has all columns\n" if left_out else ""
        assert printed.err == note


def test_a_cell_stays_in_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("id", "name"), [("a", "x\nb  admin"), ("c", "y\tz")], empty="")
    assert capsys.readouterr().out.splitlines() == ["id  name", "a   x\\nb  admin", "c   y\\tz"]
