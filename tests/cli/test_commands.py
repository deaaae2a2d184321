"""The options of the command itself, its help, and what it imports."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gateway.base.compiled import WHY_PURE, description
from gateway.cli.commands import COMMANDS, Commands, first_sentence, program
from tests.cli.processes import demo_in

PRINT_IMPORTED = "; print(*{name.partition('.')[0] for name in sys.modules})"
RUN = "import sys; from gateway.cli.commands import program; program()(sys.argv[1:], standalone_mode=False)"


def test_the_version_says_which_path_events_take() -> None:
    result = CliRunner().invoke(program(), ["--version"])
    assert (result.exit_code, result.stdout) == (0, f"sluicegate {version('sluicegate')}, {description()}\n")
    assert ("pure" in result.stdout) == bool(WHY_PURE)


def test_help_is_a_word_too() -> None:
    for words, option in ((["help"], ["--help"]), (["help", "account"], ["account", "--help"])):
        helped, asked = (CliRunner().invoke(program(), arguments) for arguments in (words, option))
        assert (helped.exit_code, helped.stdout) == (0, asked.stdout)
        assert "Usage: " in helped.stdout


def test_the_help_says_of_each_command_what_its_own_help_begins_with() -> None:
    helps = {name: first_sentence(command.help) for name, command in Commands().items()}
    assert helps == COMMANDS


def test_the_help_fits_80_columns_and_cuts_no_sentence() -> None:
    for arguments in (["--help"], ["account", "--help"], ["usage", "list", "--help"]):
        text = CliRunner().invoke(program(), arguments, env={"COLUMNS": "80"}).stdout
        assert max(map(len, text.splitlines())) <= 80
        assert "..." not in text.partition("\n")[2]


@pytest.mark.parametrize(
    ("arguments", "absent"),
    [
        (["--version"], {"aiohttp", "asyncio", "redis", "rich", "structlog", "yaml"}),
        (["--help"], {"aiohttp", "asyncio", "redis", "rich", "structlog", "yaml"}),
        (["account", "--help"], {"aiohttp", "redis", "rich", "sqlite3", "structlog"}),
        (["usage", "list"], {"aiohttp", "redis", "rich", "structlog"}),
    ],
    ids=lambda value: " ".join(sorted(value)),
)
def test_a_command_imports_what_it_needs(arguments: list[str], absent: set[str], tmp_path: Path) -> None:
    file = demo_in(tmp_path)
    (tmp_path / "data" / "usage").mkdir(parents=True)
    given = [*arguments, "--config", str(file)] if arguments == ["usage", "list"] else arguments
    ran = subprocess.run(
        [sys.executable, "-c", RUN + PRINT_IMPORTED, *given], capture_output=True, text=True, check=True
    )
    assert ran.stdout
    assert not absent.intersection(ran.stdout.splitlines()[-1].split())
