"""Wheels of the project: one for the platform where a C compiler is, and a pure one otherwise or on request."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path
from zipfile import ZipFile

import pytest

from gateway.base import compiled

ROOT = compiled.ROOT
FILES = (
    "pyproject.toml",
    "README.md",
    "CHANGELOG.md",
    "deploy",
    "LICENSE",
    ".gitignore",
    "gateway",
    "plugins",
    "config",
)
MODULES = {str(file.relative_to(ROOT)) for file in (*map(compiled.built, compiled.MODULES), compiled.DIGESTS)}
NOT_PURE = {name: value for name, value in os.environ.items() if name != "GATEWAY_PURE"}
COMPILER = (sysconfig.get_config_var("CC") or "cc").split()[0]


def wheel(folder: Path, **environment: str) -> tuple[Path, str]:
    """Build a wheel from a copy of the sources, and return it with what the build said."""
    for name in FILES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "_compiled"))
        else:
            shutil.copy(ROOT / name, folder / name)
    run = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel"],
        cwd=folder,
        env=NOT_PURE | environment,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    (built,) = (folder / "dist").glob("*.whl")
    return built, run.stderr


@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        ({"GATEWAY_PURE": "1"}, "GATEWAY_PURE is set"),
        ({"LDSHARED": "/no/compiler -shared"}, "No such file or directory: '/no/compiler'"),
        ({"LDSHARED": "false"}, "returned non-zero exit status 1"),
    ],
    ids=["on request", "without a compiler", "with one that fails"],
)
def test_a_pure_wheel_is_built(tmp_path: Path, environment: dict[str, str], reason: str) -> None:
    if "LDSHARED" in environment and find_spec("Cython") is None:
        reason = "No module named 'Cython'"
    built, said = wheel(tmp_path, **environment)
    assert built.name.endswith("-py3-none-any.whl")
    assert MODULES.isdisjoint(names := ZipFile(built).namelist())
    assert {
        "gateway/book/README.md",
        "gateway/book/deploy/store.md",
        "gateway/docs/money.md",
        "plugins/tutorial.md",
    } <= set(names)
    assert reason in said
    assert "Traceback" not in said


@pytest.mark.skipif(
    find_spec("Cython") is None or shutil.which(COMPILER) is None, reason="needs Cython and a C compiler"
)
def test_a_wheel_for_the_platform_has_the_compiled_modules(tmp_path: Path) -> None:
    built, _ = wheel(tmp_path)
    assert not built.name.endswith("-py3-none-any.whl")
    assert MODULES.issubset(ZipFile(built).namelist())
    ZipFile(built).extractall(tmp_path / "installed")
    code = "import gateway.chat.events as module; from gateway.base import compiled; print(module.__file__, compiled.description())"
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path / "installed", env=NOT_PURE, capture_output=True, text=True
    )
    assert run.stdout.split(maxsplit=1)[1] == "events by the compiled path\n", run.stderr
    assert run.stdout.startswith(str(tmp_path / "installed"))
