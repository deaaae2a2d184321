"""`gateway plugin` writes a new package, and runs the contract tests; `gateway plugins` lists the plugins with their settings."""

from __future__ import annotations

import asyncio
import json
import signal
from decimal import Decimal
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import msgspec
import pytest
from typer.testing import CliRunner

from gateway import Caller, Plugin, Route
from gateway.admin.actions.served import describe
from gateway.cli.commands import program
from tests.cli.processes import children, gateway, gone
from tests.forked import FORKED
from tests.patience import PATIENCE_S, wait_until


def run(*arguments: str, code: int = 0) -> tuple[str, str]:
    result = CliRunner().invoke(program(), ["plugin", *arguments])
    assert result.exit_code == code, result.output
    return result.stdout, result.stderr


def test_a_good_plugin_passes_line_by_line() -> None:
    out, err = run("check", "quota", "--with", "{max_holds: 3}")
    lines = out.splitlines()
    assert lines[0] == "pass  docstring: Refuses requests that the balance cannot cover, and charges each request once."
    assert all(line.startswith("pass  ") for line in lines)
    assert len(lines) == 16
    assert err == ""


def test_a_broken_promise_is_exit_1_and_scripts_get_one_object_a_line() -> None:
    out, _ = run("check", "tests.faulty:Misspelt", code=1)
    assert "FAIL  hooks: `on_requests` is not a hook" in out
    out, _ = run("check", "tests.faulty:Misspelt", "--json", code=1)
    assert [finding["check"] for finding in map(json.loads, out.splitlines()) if not finding["passed"]] == ["hooks"]


def test_a_header_goes_with_every_request() -> None:
    out, _ = run("check", "auth", "--header", "Authorization: Bearer sesame-4711", code=1)
    assert "401 token_invalid" in out
    assert "sesame" not in out


async def test_a_plugin_in_the_working_directory_is_found(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text('from gateway import Plugin\n\n\nclass Mine(Plugin):\n    """Mine."""\n')
    code, out, err = await gateway("plugin", "check", "mine:Mine", cwd=tmp_path)
    assert (code, err) == (0, "")
    assert out.startswith("pass  docstring: Mine.\n")


NEVER_STARTS = '''
import os, time
from pathlib import Path
from gateway import Plugin, Services

class Mine(Plugin):
    """Mine."""

    async def start(self, services: Services) -> None:
        Path("pid.part").write_text(str(os.getpid()))
        Path("pid.part").rename("pid")
        while True:
            time.sleep(60)
'''


async def test_ctrl_c_ends_a_check_and_what_it_started(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(NEVER_STARTS)
    process = await asyncio.create_subprocess_exec(
        *(FORKED, "-m", "gateway", "plugin", "check", "mine:Mine"),
        cwd=tmp_path,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    await wait_until((tmp_path / "pid").exists)
    started = set(children(process.pid))
    assert int((tmp_path / "pid").read_text()) in started
    process.send_signal(signal.SIGINT)
    out, err = await asyncio.wait_for(process.communicate(), PATIENCE_S)
    assert process.returncode == 130
    assert b"Traceback" not in out + err
    await gone(started)


@pytest.mark.parametrize(
    ("arguments", "code", "error"),
    [
        (["nobody"], 1, "gateway: there is no plugin `nobody`; installed: answer-cache,"),
        (["tests.faulty:Nobody"], 1, "gateway: `tests.faulty` has no `Nobody`"),
        (["quota", "--with", "{max_holds: many}"], 2, "gateway: --with:1: max_holds: must be a whole number"),
        (["quota", "--with", "{holds: 3}"], 2, "gateway: --with:1: holds: unknown setting; known here: lease_margin"),
        (["quota", "--with", "max_holds"], 2, "write a mapping, as in"),
        (["quota", "--with", "{"], 2, "write a mapping, as in"),
        (["quota", "--with", "{max_holds:3}"], 2, "`max_holds:3` is one name in YAML: put a space after the colon"),
        (["quota", "--with", "{max_holds:}"], 2, "max_holds: must be a whole number"),
        (["quota", "--header", "Authorization"], 2, "write it as 'Name: value'"),
    ],
)
def test_a_mistake_is_one_line_with_a_cure(arguments: list[str], code: int, error: str) -> None:
    out, err = run("check", *arguments, code=code)
    assert out == ""
    assert error in err


def test_a_new_package_is_written_once(tmp_path: Path) -> None:
    out, _ = run("new", "night-rates", "--into", str(tmp_path))
    assert out.startswith(f"{tmp_path}/night-rates is ready; its README.md says how to continue:\n")
    assert (tmp_path / "night-rates" / "pyproject.toml").exists()
    _, err = run("new", "night-rates", "--into", str(tmp_path), code=1)
    assert err == f"gateway: {tmp_path}/night-rates already exists: choose another name, or another --into\n"


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    _, err = run("new", "night-rates", "--into", str(tmp_path / "file"), code=1)
    assert err.startswith("gateway: cannot write ")
    assert err.endswith(": Not a directory\n")


class Example(Plugin):
    """Does this and
    that.

    At length.
    """

    requires: ClassVar[tuple[type, ...]] = (Caller,)
    provides: ClassVar[tuple[type, ...]] = (Route,)

    must: str
    most: Annotated[int, msgspec.Meta(ge=1)] = 5
    price: Decimal | None = None
    way: Literal["in", "out"] = "in"
    names: list[str] = msgspec.field(default_factory=list)


def listed(*arguments: str) -> str:
    result = CliRunner().invoke(program(), ["plugins", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_plugin_is_described_in_words() -> None:
    assert describe("example", Example) == {
        "name": "example",
        "about": "Does this and that.",
        "needs": ["Caller"],
        "provides": ["Route"],
        "settings": [
            {"name": "must", "type": "text"},
            {"name": "most", "type": "a whole number", "default": 5},
            {"name": "price", "type": "a number or null", "default": None},
            {"name": "way", "type": "in or out", "default": "in"},
            {"name": "names", "type": "a list of text", "default": []},
        ],
    }


def test_scripts_get_one_object_a_line() -> None:
    plugins = {plugin["name"]: plugin for plugin in map(json.loads, listed("--json").splitlines())}
    assert set(plugins) >= {"usage-logger", "auth", "rate-limit", "quota", "model-routing"}
    assert plugins["auth"]["provides"] == plugins["quota"]["needs"] == ["Caller"]
    assert {"name": "on_crash", "type": "release or charge_floor", "default": "release"} in plugins["quota"]["settings"]
    for plugin in plugins.values():
        assert plugin["about"].endswith("."), "a whole sentence"


def test_people_get_settings_with_types_and_defaults() -> None:
    text = listed()
    assert "quota: Refuses requests" in text
    assert "  needs Caller\n" in text
    assert "  max_hold: a number or null (null)\n" in text
    assert '  on_crash: release or charge_floor ("release")\n' in text
