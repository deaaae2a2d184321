"""Wheels of the project, and what `make` says where something that it needs is missing."""

from __future__ import annotations

import os
import re
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
    *("pyproject.toml", "README.md", "CHANGELOG.md", "deploy", "LICENSE", ".gitignore", "gateway", "plugins"),
    "config",
)
FEW = ("gateway.chat.sse", "gateway.chat.tokens", "gateway.chat.usage", "gateway.chat.events")
"""Those of the compiled modules that are built here. An installation builds all of them by the same lines."""
assert set(FEW) <= set(compiled.MODULES)
MODULES = {str(file.relative_to(ROOT)) for file in (*map(compiled.built, FEW), compiled.DIGESTS)}
NOT_PURE = {name: value for name, value in os.environ.items() if name != "GATEWAY_PURE"}
COMPILER = (sysconfig.get_config_var("CC") or "cc").split()[0]


def wheel(folder: Path, **environment: str) -> tuple[Path, str]:
    """Build a wheel from a copy of the sources, with few compiled modules, and return it with what the build said."""
    for name in FILES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "_compiled"))
        else:
            shutil.copy(ROOT / name, folder / name)
    listed = folder / "gateway/base/compiled.py"
    text, taken = re.subn(r"(?<=\nMODULES: Final = ).*?\n\)", repr(FEW), listed.read_text(), flags=re.DOTALL)
    assert taken == 1
    listed.write_text(text)
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
    built, _ = wheel(tmp_path, CFLAGS="-O0")  # compiled in a third of the time
    assert not built.name.endswith("-py3-none-any.whl")
    assert MODULES.issubset(ZipFile(built).namelist())
    ZipFile(built).extractall(tmp_path / "installed")
    code = "import gateway.chat.events as module; from gateway.base import compiled; print(module.__file__, compiled.description())"
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path / "installed", env=NOT_PURE, capture_output=True, text=True
    )
    assert run.stdout.split(maxsplit=1)[1] == "events by the compiled path\n", run.stderr
    assert run.stdout.startswith(str(tmp_path / "installed"))


OLD = '#!/bin/sh\ncase "$2" in *exit*) exit 1 ;; esac\necho 3.9.18\n'
"""A Python 3.9.18, as far as it is asked for its version."""
WITHOUT_VENV = (
    '#!/bin/sh\n[ "$1" = -m ] && echo "ensurepip is not available" && exit 1\n[ -n "${2##*print*}" ] || echo 3.11\n'
)
"""A Python 3.11 as Debian has it without python3-venv."""
HALF_MADE = """#!/bin/sh
case "$*" in
    "-m pip --version") [ -e pip ] ;;
    "-m ensurepip"*) touch pip ;;
    "-m pip install"*) echo "ERROR: NewConnectionError: Connection refused" && exit 1 ;;
esac
"""
"""The Python of an environment without pip, whose package index does not answer."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a checkout with what the installation reads, in a path with spaces."""
    folder = tmp_path / "a path with spaces"
    (folder / "deploy").mkdir(parents=True)
    for name in ("install.sh", "pip.lock", "requirements.lock", "requirements-dev.lock"):
        shutil.copy(ROOT / "deploy" / name, folder / "deploy" / name)
    return folder


def python_of(folder: Path, text: str) -> Path:
    file = folder / "python stub"
    file.write_text(text)
    file.chmod(0o755)
    return file


def refusal(folder: Path, python: str | Path, path: str = "/usr/bin:/bin", **environment: str) -> str:
    """Run the installation, which fails. Return its sentence."""
    run = subprocess.run(
        ["sh", "deploy/install.sh", str(python), ".venv", "serve"],
        cwd=folder,
        env={"PATH": path, "HOME": str(folder), "TMPDIR": str(folder), **environment},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 1, run.stdout + run.stderr
    assert run.stderr.startswith("install: ")
    assert run.stderr.count("\n") == 1, run.stderr
    return run.stderr.removeprefix("install: ").strip()


def test_a_python_that_is_too_old_is_named_with_what_would_do(folder: Path, tmp_path: Path) -> None:
    old = python_of(folder, OLD)
    said = refusal(folder, old)
    assert said.startswith(f"`{old}` is Python 3.9.18, and 3.11 or later is needed; ")
    assert not (folder / ".venv").exists()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3.12").symlink_to(sys.executable)
    said = refusal(folder, old, path=f"{tmp_path}/bin:/usr/bin:/bin")
    assert said.endswith(f"this machine has one: make serve PYTHON={tmp_path}/bin/python3.12")


def test_a_python_that_is_not_there_is_named(folder: Path) -> None:
    said = refusal(folder, "python-of-nobody")
    assert said.startswith("there is no `python-of-nobody`, and Python 3.11 or later is needed; ")


def test_a_python_without_venv_is_told_which_package_to_install(folder: Path) -> None:
    said = refusal(folder, python_of(folder, WITHOUT_VENV))
    assert said.startswith("Python 3.11 has no venv or no pip; on Debian and Ubuntu: apt install python3.11-venv; ")
    log = Path(said.rpartition("it said: ")[2].rstrip(")"))
    assert log.read_text() == "ensurepip is not available\n"


def test_a_half_made_environment_is_mended_and_an_index_that_does_not_answer_is_named(folder: Path) -> None:
    (folder / ".venv/bin").mkdir(parents=True)
    python_of(folder, HALF_MADE).rename(folder / ".venv/bin/python")
    said = refusal(folder, "/nothing", PIP_INDEX_URL="http://user:secret-4711@127.0.0.1:9/simple")
    assert said.startswith("the package index http://127.0.0.1:9/simple cannot be reached: is there a network")
    assert (folder / "pip").exists(), "the environment has a pip now, whatever Python is named"
    assert Path(said.rpartition("pip said: ")[2].rstrip(")")).read_text().startswith("ERROR: ")
