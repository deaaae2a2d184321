"""Tables as people read them, the line that shows how far a command is, and an output that is closed before its end."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from gateway.admin.actions.accounts import ListedAccount
from gateway.admin.actions.inputs import BudgetWindow
from gateway.cli import common as module
from gateway.cli.account import print_accounts
from gateway.cli.common import progress
from gateway.cli.tables import print_fields, print_table, width_of
from gateway.domain.facts import AccountLimits, Budgets
from gateway.store.accounts import AccountStatus
from tests.cli.processes import demo_in
from tests.records import arrival, end, usage_database

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


def account(name: str, balance: int, used: int = 0) -> ListedAccount:
    return ListedAccount(
        id=name,
        status=AccountStatus.ACTIVE,
        group="default",
        balance_micros=balance,
        held_micros=1,
        holds=1,
        credit_line_micros=0,
        models=(),
        limits=AccountLimits(),
        budgets=Budgets(),
        budget_use=[BudgetWindow("account", "month", 100, used, 100 - used)] if used else [],
    )


def test_several_accounts_have_a_total_and_fit_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    print_accounts([account("a" * 32, 5_000_000), account("bob", -1)])
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].split() == ["total", "4.999999"]  # what is held has no room
    assert max(map(len, lines)) <= 80
    print_accounts([account("bob", 1, used=80)])
    alone = capsys.readouterr().out
    assert "80 % of month" in alone
    by_requests = BudgetWindow("account", "day", limit_requests=5, used_requests=1, left_requests=4)
    print_accounts([msgspec.structs.replace(account("bob", 1), budget_use=[by_requests])])
    assert "20 % of requests a day" in capsys.readouterr().out
    assert "total" not in alone


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
