"""The command line with all its commands. Each command's file has a `register(app)`."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup
from typer.main import get_group

from gateway import compiled
from gateway.cli import exits
from gateway.errors import GatewayError

COMMANDS: Final = (
    "serve",
    "init",
    "check",
    "diff",
    "plugins",
    "plugin",
    "channels",
    "prices",
    "account",
    "token",
    "pepper",
    "alerts",
    "usage",
    "trace",
    "gateways",
    "verify",
    "reconcile",
    "explain",
    "doctor",
    "fake-upstream",
)
"""In the order in which `--help` lists them. Each is in the file of its name."""
OF_THE_DISK: Final = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)
"""Errors that say themselves what is wrong: a disk that is full or read-only, a file of another user."""
MARKUP: Final = "markdown"
UsageError: Any = typer.BadParameter.__mro__[1]  # typer has no public name for it


class Commands(Mapping[str, Any]):
    """The commands by their names. The file of one is imported when it is looked up: all of them take half a second."""

    def __getitem__(self, name: str) -> Any:
        if name not in COMMANDS:
            raise KeyError(name)
        app = typer.Typer(rich_markup_mode=MARKUP)
        import_module(f"gateway.cli.{name.replace('-', '_')}").register(app)
        return get_group(app).commands[name]

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class Program(TyperGroup):
    """A group of commands that prints errors as one line on standard error, without a traceback."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = Commands()  # type: ignore[assignment]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take `help` for `--help`: `gateway help account` is `gateway account --help`."""
        exits.look_at(args)
        return super().parse_args(ctx, [*args[1:], "--help"] if args[:1] == ["help"] else args)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except UsageError as error:
            error.message = exits.shown(error.message)
            raise
        except GatewayError as error:
            raise exits.failed_with(error) from None
        except OSError as error:
            if error.errno not in OF_THE_DISK:
                raise
            raise exits.failed(f"{error.filename or 'the disk'}: {error.strerror}", "refused") from None


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"sluicegate {version('sluicegate')}, {compiled.description()}")
        raise typer.Exit


def _options(
    _: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_show_version,
            is_eager=True,
            help="Print the version, and whether events take the compiled path.",
        ),
    ] = False,
) -> None:
    pass


def program() -> typer.Typer:
    """Return the command line."""
    app = typer.Typer(
        name="gateway",
        cls=Program,
        help="A streaming chat-completion gateway. To try it: `gateway serve --config config/demo.yaml`.",
        epilog=f"Exit codes:\n\n{exits.in_words()}\n\nWith `--json`, errors are JSON, too: `kind` and `message`.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=MARKUP,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_options)
    return app
