"""What is installed beside the gateway: exact versions, checked by hash, and nothing that runs at every start of Python."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LOCKS = sorted((ROOT / "deploy").glob("*.lock"))
KNOWN_STARTERS = {"coverage", "setuptools"}
"""Tools whose `.pth` files run code: coverage measures processes that tests start, setuptools stands in for distutils."""


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_every_locked_version_is_exact_and_has_a_hash(lock: Path) -> None:
    entries = re.split(r"\n(?=\S)", lock.read_text().strip())
    assert len(entries) > 30 or lock.name == "pip.lock"
    for entry in entries:
        assert re.match(r"[a-z0-9._-]+==\S+", entry), entry[:80]
        assert "--hash=sha256:" in entry, entry[:80]


def test_every_dependency_is_locked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [
        *project["dependencies"],
        *(name for extra in project["optional-dependencies"].values() for name in extra),
    ]
    locked = (ROOT / "deploy/requirements-dev.lock").read_text().lower()
    names = [re.split(r"[\[<>=; ]", requirement)[0].lower() for requirement in wanted]
    assert [name for name in names if f"{name}==" not in locked] == []


def test_no_installed_package_runs_code_at_every_start_of_python() -> None:
    starters = {
        distribution.name
        for distribution in distributions()
        for file in distribution.files or ()
        if file.suffix == ".pth"
        and any(line.startswith("import") for line in Path(str(file.locate())).read_text().splitlines())
    }
    assert starters <= KNOWN_STARTERS
