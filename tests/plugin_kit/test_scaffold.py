"""The package of a new plugin is complete, and its tests pass at once."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from gateway.config import schema
from gateway.plugin_kit.scaffold import write


def test_the_tests_and_the_linter_pass_for_a_new_package(tmp_path: Path) -> None:
    folder = write("night-rates", tmp_path)
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert "4 passed" in run.stdout, run.stdout + run.stderr
    lint = subprocess.run(
        [
            sys.executable,
            "-m",
            "ruff",
            "check",
            "--isolated",
            "--select",
            "E,F,W,I,N,UP,B",
            "--line-length",
            "120",
            ".",
        ],
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert lint.returncode == 0, lint.stdout


def test_the_package_is_complete(tmp_path: Path) -> None:
    folder = write("night-rates", tmp_path)
    assert folder == tmp_path / "night-rates"
    assert sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()) == [
        *(".gitignore", "README.md", "gateway.yaml", "pyproject.toml"),
        *("src/night_rates.py", "tests/test_night_rates.py"),
    ]
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    assert project["name"] == "night-rates"
    assert project["entry-points"]["gateway.plugins"] == {"night-rates": "night_rates:NightRates"}
    (entry,) = [entry for entry in schema.load(folder / "gateway.yaml").config.plugins if entry.use == "night-rates"]
    assert entry.with_ == {"at_once": 2}
    for path in folder.rglob("*.*"):
        assert not path.is_file() or "$" not in path.read_text(), path


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    plugin = write("night-rates", tmp_path) / "src" / "night_rates.py"
    plugin.write_text("# mine\n")
    with pytest.raises(ValueError, match="already exists"):
        write("night-rates", tmp_path)
    assert plugin.read_text() == "# mine\n"


@pytest.mark.parametrize(
    ("name", "cure"),
    [
        *(("", "use a-z, 0-9 and single hyphens"), ("Office", "use a-z"), ("night_rates", "use a-z")),
        *(("-office", "use a-z"), ("office--hours", "use a-z"), ("../office", "use a-z"), ("4711", "use a-z")),
        ("o" * 65, "use a-z"),
        ("class", "choose a name of two words, as in class-rules"),
        ("json", "choose a name of two words"),
        ("plugin", "choose a name of two words"),
        ("rate-limit", "a plugin called `rate-limit` is installed already"),
        ("aiohttp", "a module called `aiohttp` can be imported already"),
    ],
)
def test_a_name_that_cannot_be_used_is_refused_with_a_cure(tmp_path: Path, name: str, cure: str) -> None:
    with pytest.raises(ValueError, match=cure):
        write(name, tmp_path)
    assert list(tmp_path.iterdir()) == []
