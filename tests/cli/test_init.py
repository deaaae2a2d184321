"""`gateway init` makes a store, and says what it made; no other command makes anything."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gateway.cli.commands import COMMANDS, program

FILE = (
    "channels: {up: {base_url: 'http://h/v1'}}\nmodels: {m: {free: true, channels: [up]}}\ngroups: {default: {}}\n"
    "plugins: [{use: usage-logger}, {use: auth}, {use: rate-limit}, {use: quota}, {use: model-routing}]\n"
)
ID = "01a1fccb-1807-7197-9f1b-61a58aba6c92"
NEED_A_STORE = (
    *(["channels"], ["channels", "disable", "up"], ["account", "create", "acme"], ["account", "list"]),
    *(["account", "credit", "acme", "5", "--transaction", "t"], ["token", "create", "acme"]),
    *(["token", "list", "acme"], ["pepper", "show"], ["pepper", "rotate"]),
    *(["pepper", "rotate", "--lost", "--yes"], ["usage", "list"], ["usage", "show", ID], ["usage", "tail"]),
    *(["usage", "summary"], ["usage", "export"], ["trace", ID], ["verify"], ["gateways", "list"]),
    *(["admin", "link"], ["audit", "list"], ["management-tokens", "list"], ["account", "ledger", "acme"]),
    *(["token", "rotate", "acme-1a2b3c4d", "--overlap", "24h"], ["explain", "--token", "x", "--model", "m"]),
)
NEED_NONE = (["check"],)


def run(*command: str) -> Result:
    result = CliRunner().invoke(program(), list(command))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    return result


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("GATEWAY_PEPPER", "GATEWAY_ADMIN_TOKEN", "GATEWAY_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    (tmp_path / "gateway.yaml").write_text(FILE)
    return tmp_path


def test_no_command_makes_a_store(folder: Path) -> None:
    file = folder / "gateway.yaml"
    before = sorted(folder.rglob("*"))
    for command in NEED_A_STORE:
        result = run(*command, "--config", str(file))
        said = f"gateway: no store at {folder}/data: start the gateway there, or pass --config\n"
        assert (result.exit_code, result.stderr) == (1, said), command
    for command in NEED_NONE:
        assert run(*command, "--config", str(file)).exit_code == 0, command
    assert sorted(folder.rglob("*")) == before


def test_a_store_elsewhere_is_used_without_a_data_folder_and_none_is_made(folder: Path, store_url: str) -> None:
    file = str(folder / "gateway.yaml")
    Path(file).write_text(f"redis: {store_url}\nstore: {{timeout: 10}}\n{FILE}")
    before = sorted(folder.rglob("*"))
    assert run("account", "create", "acme", "--config", file).exit_code == 0
    assert "acme" in run("account", "list", "--config", file).stdout
    assert run("verify", "--config", file).exit_code == 0
    assert f"no store at {folder}/data" in run("usage", "list", "--config", file).stderr
    refused = run("token", "create", "acme", "--config", file)
    assert (refused.exit_code, f"{folder}/data/pepper is missing, and is not made anew" in refused.stderr) == (2, True)
    for more in ((), ("--lost", "--yes")):
        assert f"no store at {folder}/data" in run("pepper", "rotate", *more, "--config", file).stderr
    assert sorted(folder.rglob("*")) == before


def test_every_command_with_a_configuration_is_tried() -> None:
    tried = {command[0] for command in (*NEED_A_STORE, *NEED_NONE)}
    makes, reads_files_alone = (
        {"serve", "init"},
        {"diff", "docs", "plugin", "plugins", "prices", "models", "doctor", "fake-upstream"},
    )
    with_other_arguments = {"alerts", "reconcile"}
    assert set(COMMANDS) == tried | makes | reads_files_alone | with_other_arguments


def test_it_makes_a_store_for_the_file_wherever_it_runs(folder: Path) -> None:
    file = str(folder / "gateway.yaml")
    data = folder / "data"
    made = json.loads(run("init", "--config", file, "--json").stdout)
    names = ["pepper", "store.lock", "admin.token"]
    assert made["made"] == [str(data), *(str(data / name) for name in names)]
    assert {path.stat().st_mode & 0o077 for path in (data, *data.iterdir())} == {0}
    again = run("init", "--config", "../gateway.yaml").stdout
    assert all(f"there was {data / name}" in again for name in names)
    assert "gateway serve --config ../gateway.yaml" in again
    assert (data / "pepper").read_text().strip() not in again
    assert run("account", "create", "acme", "--config", file).exit_code == 0
    assert run("token", "create", "acme", "--config", file).exit_code == 0
    assert list((folder / "elsewhere").iterdir()) == []


def test_it_makes_none_for_the_demo_that_was_not_named(folder: Path) -> None:
    result = run("init")
    assert result.exit_code == 2
    assert "there is no gateway.yaml here" in result.stderr


def test_a_command_without_a_file_says_that_it_takes_the_demos(folder: Path) -> None:
    result = run("plugins")
    assert result.exit_code == 0
    result = run("prices", "import", str(folder / "nothing.json"))
    assert "note: without --config, $GATEWAY_CONFIG and ./gateway.yaml the demo's file is used: /" in result.stderr
    assert list((folder / "elsewhere").iterdir()) == []


def test_the_pepper_is_changed_by_a_command(folder: Path) -> None:
    file = str(folder / "gateway.yaml")
    run("init", "--config", file)
    before = (folder / "data" / "pepper").read_bytes()
    prepared = run("pepper", "rotate", "--prepare", "--config", file).stdout
    assert f"copy {folder}/data/pepper and {folder}/data/pepper.old there" in prepared
    assert (folder / "data" / "pepper.old").read_bytes() == before
    assert json.loads(run("pepper", "show", "--json", "--config", file).stdout)["old_accepted_until"] is None
    rotated = run("pepper", "rotate", "--accept-old", "1h", "--config", file)
    assert (rotated.exit_code, "are accepted until 20" in rotated.stdout) == (0, True), rotated.output
    assert (folder / "data" / "pepper.old").read_bytes() == before, (
        "the prepared one is recorded, and no third one made"
    )
    assert json.loads(run("pepper", "show", "--json", "--config", file).stdout)["old_accepted_until"] is not None
    asked = run("pepper", "rotate", "--config", file)
    assert (asked.exit_code, "They become void now" in asked.output, "give --yes" in asked.output) == (2, True, True)
    assert run("pepper", "rotate", "--accept-old", "soon", "--config", file).exit_code == 2


def test_a_pepper_in_the_environment_is_changed_there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = str(folder / "gateway.yaml")
    monkeypatch.setenv("GATEWAY_PEPPER", "a pepper of some length")
    run("init", "--config", file)
    assert not (folder / "data" / "pepper").exists()
    refused = run("pepper", "rotate", "--config", file)
    assert (refused.exit_code, "give the present value as $GATEWAY_PEPPER_OLD" in refused.stderr) == (1, True)
