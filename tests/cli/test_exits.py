"""Scripts learn from the exit code, and from JSON where they ask for it, why a command failed; help; what is imported."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gateway.base.compiled import WHY_PURE, description
from gateway.cli.commands import COMMANDS, Commands, first_sentence, program
from gateway.cli.exits import EXIT_CODES
from gateway.store.pepper import make_pepper
from tests.cli.processes import demo_in
from tests.patience import PATIENCE_S

DOCUMENT = Path(__file__).parent.parent.parent / "deploy" / "processes.md"


def call(*arguments: str) -> Result:
    return CliRunner().invoke(program(), list(arguments))


@pytest.fixture(autouse=True)
def configured(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    store_url: str,
) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text(
        f"redis: {store_url}\ndata: {tmp_path}\ngroups: {{default: {{}}}}\nstore: {{timeout: {PATIENCE_S}}}\n"
    )
    make_pepper(tmp_path)
    monkeypatch.setenv("GATEWAY_CONFIG", str(file))
    assert call("account", "create", "alice", "--credit", "5").exit_code == 0


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        *(("account create al", "refused"), ("account create alice", "exists")),
        *(("account create bob --group nowhere", "not_found"), ("account show nobody", "not_found")),
        ("account credit alice 7 --transaction opening-alice", "conflict"),
        ("account credit nobody 7 --transaction one", "not_found"),
        ("token create nobody", "not_found"),
        ("token delete alice-zzzzzzzz", "not_found"),
        ("account list --config /nowhere/gateway.yaml", "misconfigured"),
    ],
)
def test_the_exit_code_says_why(command: str, kind: str) -> None:
    arguments = [*command.split(), *(["--yes"] if "delete" in command else [])]
    plain = call(*arguments)
    assert (plain.exit_code, plain.stdout) == (EXIT_CODES[kind][0], "")
    assert plain.stderr.startswith("gateway: ")
    if "delete" not in command:
        with_json = call(*arguments, "--json")
        error = json.loads(with_json.stderr)["error"]
        assert (with_json.exit_code, error["kind"]) == (EXIT_CODES[kind][0], kind)
        assert plain.stderr == f"gateway: {error['message']}\n"


@pytest.mark.parametrize("command", ["list", "import some.csv"])
def test_a_store_that_is_away_has_a_code_of_its_own(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("some.csv").write_text("id\nalice\nrobert\n")
    Path("away.yaml").write_text(
        f"redis: unix://{tmp_path}/nothing.sock\ndata: {tmp_path}\ngroups: {{default: {{}}}}\n"
    )
    result = call("account", *command.split(), "--config", "away.yaml", "--json")
    assert result.exit_code == EXIT_CODES["store_away"][0]
    assert json.loads(result.stderr)["error"]["kind"] == "store_away"


def test_the_codes_are_in_the_help_and_in_the_document() -> None:
    shown = re.sub(r"\s+", " ", call("--help").stdout)
    rows = DOCUMENT.read_text()
    for kind, (code, meaning) in EXIT_CODES.items():
        assert f"{code}: {meaning}" in shown
        assert f"| {code} | `{kind}` | {meaning} |" in rows


TOKEN = "sk-alice-1a2b3c4d-9f8e7d6c5b4a39281706f5e4d3c2"


@pytest.mark.parametrize(
    "command",
    [
        *(
            *("account show", "account credit alice", "verify", "channels disable", "gateways forget", "trace"),
            "usage show",
        ),
        *("usage list --from", "usage list --outcome", "usage summary --by", "", "account", "--", "token delete"),
    ],
)
def test_a_pasted_credential_is_not_repeated(command: str) -> None:
    result = call(*command.split(), TOKEN)
    assert result.exit_code != 0
    assert TOKEN not in re.sub(r"[^!-~]", "", result.output)
    assert TOKEN[:20] not in result.output


def test_what_a_terminal_obeys_is_shown_as_its_code() -> None:
    name = "\x1b[31m=cmd()\x9b\u202e"
    created = call("token", "create", "alice", "--models", name)
    listed = call("token", "list", "alice")
    assert call("account", "adjust", "alice", "1", "--reason", name, "--transaction", "one").exit_code == 0
    ledger = call("account", "ledger", "alice", "--csv")
    refused = call("token", "create", f"alice{name}")
    for each in (created, listed, ledger, refused):
        assert not {"\x1b", "\x9b", "\u202e"} & set(each.output), each.output
    for each in (created, listed, ledger):
        assert r"\x1b[31m=cmd()\x9b\u202e" in each.output


def test_an_argument_that_is_no_text_is_wrong_usage() -> None:
    result = call("account", "show", "\udcff")
    assert (result.exit_code, result.stderr) == (2, "gateway: an argument is not text in UTF-8\n")


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
