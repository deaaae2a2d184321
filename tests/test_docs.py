"""What the documentation says is true: its examples run, and it names every setting, command and error code."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from gateway import config, loading
from gateway.errors import Misconfigured

ROOT = Path(__file__).parent.parent


def blocks(file: str, language: str) -> list[str]:
    """The fenced blocks of a language in a document."""
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / file).read_text(), flags=re.DOTALL)


def named(file: str) -> dict[str, str]:
    """The Python blocks that begin with a comment naming their file."""
    return {block.partition("\n")[0].removeprefix("# "): block for block in blocks(file, "python")}


def test_the_example_plugin_and_its_test_run(tmp_path: Path) -> None:
    for name, text in named("plugins/README.md").items():
        (tmp_path / name).write_text(text)
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-o",
            "asyncio_mode=auto",
            "--rootdir",
            str(tmp_path),
            str(tmp_path),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "2 passed" in run.stdout, run.stdout + run.stderr


def with_chain(tmp_path: Path, chain: str) -> config.Loaded:
    (tmp_path / "office_hours.py").write_text(named("plugins/README.md")["office_hours.py"])
    file = tmp_path / "gateway.yaml"
    file.write_text(chain)
    return config.load(file)


def test_the_example_chain_is_accepted(tmp_path: Path) -> None:
    (chain,) = blocks("plugins/README.md", "yaml")
    built = loading.build(with_chain(tmp_path, chain))
    hours = built.steps[2].plugin
    assert (hours.opens, hours.closes) == (9, 17)  # type: ignore[attr-defined]


def test_the_example_above_auth_is_refused_with_the_documented_cure(tmp_path: Path) -> None:
    (chain,) = blocks("plugins/README.md", "yaml")
    lines = chain.replace("  - use: auth\n", "").replace(
        "  - use: rate-limit\n", "  - use: auth\n  - use: rate-limit\n"
    )
    with pytest.raises(Misconfigured) as refused:
        loading.build(with_chain(tmp_path, lines))
    cure = str(refused.value).partition("plugins[1]: ")[2]
    assert cure
    assert cure in (ROOT / "plugins/README.md").read_text()
