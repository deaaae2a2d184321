"""What the documentation says is true: its examples run, and it names every setting, command and error code."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main

from gateway import loading
from gateway.cli.commands import program
from gateway.config import schema
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
    assert "3 passed" in run.stdout, run.stdout + run.stderr


def with_chain(tmp_path: Path, chain: str) -> schema.Loaded:
    (tmp_path / "office_hours.py").write_text(named("plugins/README.md")["office_hours.py"])
    file = tmp_path / "gateway.yaml"
    file.write_text(chain)
    return schema.load(file)


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


def codes(tree: ast.AST) -> set[str]:
    """The second arguments of all calls of `Refused` and of the helper that makes a 502."""
    place = {"Refused": 1, "failed": 1}
    return {
        argument.value
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in place
        for argument in call.args[1:2]
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    }


def test_every_error_code_is_in_the_readme() -> None:
    sources = [*(ROOT / "gateway").rglob("*.py"), *(ROOT / "plugins").glob("*.py")]
    found = set().union(*(codes(ast.parse(source.read_text())) for source in sources))
    assert {"token_missing", "model_not_found", "upstream_unreachable", "service_unavailable"} <= found
    text = (ROOT / "README.md").read_text()
    assert sorted(code for code in found if f"`{code}`" not in text) == []


def test_every_command_and_subcommand_is_in_the_readme() -> None:
    text = (ROOT / "README.md").read_text()
    command = typer.main.get_command(program())
    for name, noun in command.commands.items():  # type: ignore[attr-defined]
        (row,) = [line for line in text.splitlines() if line.startswith(f"| `gateway {name}`")]
        assert [verb for verb in getattr(noun, "commands", ()) if verb not in row] == []


def test_every_moment_is_in_the_plugin_guide() -> None:
    from gateway.plugin import Plugin

    text = (ROOT / "plugins/README.md").read_text()
    hooks = [name for name in vars(Plugin) if name in ("start", "stop") or name.startswith("on_")]
    assert len(hooks) == 6
    assert [hook for hook in hooks if f"{hook}(" not in text] == []


def test_every_example_plugin_is_in_the_guide_with_the_codes_it_refuses_with() -> None:
    text = (ROOT / "plugins/README.md").read_text()
    modules = sorted((ROOT / "plugins/examples").glob("[a-z]*.py"))
    assert len(modules) == 5
    for module in modules:
        tree = ast.parse(module.read_text())
        class_name = module.stem.title().replace("_", "")
        (row,) = [line for line in text.splitlines() if f"`plugins.examples.{module.stem}:{class_name}`" in line]
        assert [code for code in codes(tree) if f"`{code}`" not in row] == []
        assert len(module.read_text().splitlines()) < 60
