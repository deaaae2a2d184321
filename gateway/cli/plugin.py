"""`gateway plugin`: what an author needs: a new package to begin with, and whether a plugin keeps its promises."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from gateway.cli.common import JsonOption, console, print_json, refuse

plugin = typer.Typer(no_args_is_help=True, help="For authors: new, check.")


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(plugin, name="plugin")


@plugin.command()
def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What operators will write under `use:`: office-hours.")],
    into: Annotated[Path, typer.Option(help="The folder in which the package's folder is made.")] = Path(),
) -> None:
    """Write a package with a plugin, its test, a README and a configuration. Its test passes at once.

    Example: `gateway plugin new office-hours`
    """
    from gateway.tools.scaffold import write

    try:
        folder = write(name, into)
    except ValueError as error:
        raise refuse(str(error)) from None
    except OSError as error:
        raise refuse(f"cannot write {error.filename}: {error.strerror}") from None
    console().print(f"{folder} is ready; its README.md says how to go on:")
    console().print(f"  cd {folder} && pip install -e '.[test]' && pytest")


@plugin.command()
def check(
    use: Annotated[str, typer.Argument(metavar="USE", help="module:Class, or the name of an installed plugin.")],
    with_: Annotated[str, typer.Option("--with", help="The settings, as in YAML: '{opens: 9}'.")] = "{}",
    header: Annotated[
        list[str] | None, typer.Option(help="Sent with every request, 'Name: value'; for a plugin that asks for it.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Run a plugin through the contract tests: on a store of their own, in a second. Exit code 1 names what it breaks.

    Example: `gateway plugin check office_hours:OfficeHours --with '{opens: 9}'`
    """
    from gateway import contract

    sys.path.append(str(Path.cwd()))
    try:
        findings = asyncio.run(contract.check(use, _settings(with_), headers=_headers(header or [])))
    except ValueError as error:
        raise refuse(str(error)) from None
    for finding in findings:
        if as_json:
            print_json(finding)
        else:
            console().print(f"{'pass' if finding.passed else 'FAIL'}  {finding.check}: {finding.text}")
    if contract.broken(findings):
        raise typer.Exit(1)


def _settings(text: str) -> dict[str, Any]:
    try:
        settings = yaml.safe_load(text)
    except yaml.YAMLError:
        settings = None
    if not isinstance(settings, dict):
        raise typer.BadParameter("write a mapping, as in '{opens: 9, closes: 17}'", param_hint="--with")
    return settings


def _headers(lines: list[str]) -> dict[str, str]:
    pairs = [line.partition(":") for line in lines]
    if not all(name.strip() and colon for name, colon, _ in pairs):
        raise typer.BadParameter("write it as 'Name: value'", param_hint="--header")
    return {name.strip(): value.strip() for name, _, value in pairs}
