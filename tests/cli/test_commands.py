"""The options of the command itself."""

from __future__ import annotations

from importlib.metadata import version

from typer.testing import CliRunner

from gateway.cli.commands import program
from gateway.compiled import description
from gateway.proxy import event_pass


def test_the_version_says_which_path_events_take() -> None:
    result = CliRunner().invoke(program(), ["--version"])
    assert (result.exit_code, result.stdout) == (0, f"sluicegate {version('sluicegate')}, {description()}\n")
    assert ("pure" in result.stdout) == bool(event_pass.WHY_PURE)


def test_help_is_a_word_too() -> None:
    for words, option in ((["help"], ["--help"]), (["help", "account"], ["account", "--help"])):
        helped, asked = (CliRunner().invoke(program(), arguments) for arguments in (words, option))
        assert (helped.exit_code, helped.stdout) == (0, asked.stdout)
        assert "Usage: " in helped.stdout
