"""`gateway plugin`: for authors of plugins, a new package and the contract tests."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
import yaml

from gateway.admin.actions.served import describe
from gateway.chain import loading
from gateway.cli.common import JsonOption, print_json, refuse

plugin = typer.Typer()


@plugin.command()
def new(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The name that operators write under `use:`, such as office-hours.")
    ],
    into: Annotated[Path, typer.Option(help="The folder in which to create the package's folder.")] = Path(),
) -> None:
    """Create a package with a plugin, its tests, a README and a configuration.

    The tests pass at once.

    Example: `gateway plugin new office-hours`
    """
    from gateway.plugin_kit.scaffold import write

    try:
        folder = write(name, into)
    except ValueError as error:
        raise refuse(str(error)) from None
    except OSError as error:
        raise refuse(f"cannot write {error.filename}: {error.strerror}") from None
    print(f"{folder} is ready; its README.md says how to continue:")
    print(f"  cd {folder} && pip install -e '.[test]' && pytest")


@plugin.command()
def check(
    use: Annotated[
        str, typer.Argument(metavar="USE", help="The plugin: `module:Class`, or the name of an installed one.")
    ],
    with_: Annotated[str, typer.Option("--with", help="The plugin's settings as a YAML mapping: '{opens: 9}'.")] = "{}",
    header: Annotated[
        list[str] | None,
        typer.Option(help="Send this header with every request, 'Name: value', if the plugin requires one."),
    ] = None,
    body: Annotated[
        str,
        typer.Option(help="Send these fields in the body of each request: '{messages: [{role: user, content: hi}]}'."),
    ] = "{}",
    as_json: JsonOption = False,
) -> None:
    """Run the contract tests on a plugin, with a store of their own.

    It ends within about a minute, whatever the plugin does. The exit code is 1 if a check fails.

    Example: `gateway plugin check office_hours:OfficeHours --with '{opens: 9}'`
    """
    from gateway.plugin_kit import broken, process

    sys.path.append(str(Path.cwd()))
    findings = process.check(
        use, _mapping(with_, "--with"), headers=_headers(header or []), body=_mapping(body, "--body")
    )
    for finding in findings:
        if as_json:
            print_json(finding)
        else:
            print(f"{'pass' if finding.passed else 'FAIL'}  {finding.check}: {finding.text}")
    if broken(findings):
        raise typer.Exit(1)


def _mapping(text: str, option: str) -> dict[str, Any]:
    try:
        settings = yaml.safe_load(text)
    except yaml.YAMLError:
        settings = None
    if not isinstance(settings, dict):
        raise typer.BadParameter("write a mapping, as in '{opens: 9, closes: 17}'", param_hint=option)
    for name, value in settings.items():
        if value is None and ":" in str(name):
            setting, _, meant = str(name).partition(":")
            text = f"`{name}` is one name in YAML: put a space after the colon, as in '{{{setting}: {meant or 'x'}}}'"
            raise typer.BadParameter(text, param_hint=option)
    return settings


def _headers(lines: list[str]) -> dict[str, str]:
    pairs = [line.partition(":") for line in lines]
    if not all(name.strip() and colon for name, colon, _ in pairs):
        raise typer.BadParameter("write it as 'Name: value'", param_hint="--header")
    return {name.strip(): value.strip() for name, _, value in pairs}


def plugins(as_json: JsonOption = False) -> None:
    """List the installed plugins: what each does, needs and provides, and its settings.

    Example: `gateway plugins --json`
    """
    for name in sorted(loading.installed()):
        described: dict[str, Any]
        try:
            described = describe(name, loading.plugin_class(name))
        except ValueError as error:
            described = {"name": name, "error": str(error)}
        if as_json:
            print_json(described)
        else:
            print(_in_words(described))


def _in_words(described: dict[str, Any]) -> str:
    lines = [f"{described['name']}: {described.get('about') or described.get('error')}"]
    for key in ("needs", "provides"):
        if names := described.get(key):
            lines.append(f"  {key} {', '.join(names)}")
    for setting in described.get("settings", ()):
        default = (
            msgspec.json.encode(setting["default"], enc_hook=str).decode() if "default" in setting else "must be given"
        )
        lines.append(f"  {setting['name']}: {setting['type']} ({default})")
    return "\n".join(lines) + "\n"
