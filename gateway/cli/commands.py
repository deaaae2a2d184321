"""The command line with all its commands: each is a function or a group of its own name in one of the files here."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup
from typer.main import get_group

from gateway.base import compiled
from gateway.base.errors import GatewayError
from gateway.base.text import shown
from gateway.cli import exits

COMMANDS: Final = {
    "serve": "Run the gateway until SIGTERM or Ctrl-C.",
    "init": "Make the data folder, the pepper, the admin token and an empty store.",
    "check": "Check the configuration, the order of the chain, the plugins' settings and the store, without serving.",
    "diff": "Show what a new file would change, and which changes need a restart.",
    "plugins": "List the installed plugins: what each does, needs and provides, and its settings.",
    "plugin": "Write and test plugins: new, check.",
    "channels": "Show the condition of the channels, and disable or enable them for all gateways that share a store.",
    "models": "Print the models that an upstream serves, as YAML for the file: import.",
    "prices": "Compare the configured prices with a public catalogue: import.",
    "account": "Manage accounts: create, credit, limit, suspend, close.",
    "token": "Manage tokens: create, list, show, set, rotate, disable, enable, delete.",
    "admin": "Let people in at the pages of the operator's port: link.",
    "management-tokens": "Manage the tokens with which programs use the operator's API: create, list, revoke.",
    "audit": "Show who changed what, and how it was before: list.",
    "pepper": "Show where the key is that tokens are checked with (show), or change it (rotate).",
    "alerts": "Send a test to a webhook (test), and show what was sent or waits (list).",
    "usage": "Read the usage log: whether a request arrived, how it ended, what it cost.",
    "trace": "Show in a sentence what happened to a request.",
    "gateways": "List the gateways of the store, which share one usage log, or forget one that has gone for good.",
    "verify": "Check every balance against its ledger, its holds and the usage log.",
    "reconcile": "Compare an upstream's bill with the usage log, call by call.",
    "explain": "Show what would happen to a request now: each plugin's decision, the price, the hold, the channels.",
    "doctor": "Find out from the caller's side why requests do not arrive or fail, and what to do about it.",
    "docs": "Print the address at which a running gateway serves its documents.",
    "fake-upstream": "Run an OpenAI-compatible upstream that can misbehave on purpose, until Ctrl-C.",
}
"""What each does, in the order in which `--help` lists them: the help of a group, and the first sentence of another's."""
FILES: Final = {
    "channels": ("channels", "models"),
    "access": ("admin", "management-tokens", "audit", "docs"),
    "configuration": ("check", "diff", "explain"),
    "maintenance": ("alerts", "gateways", "pepper", "verify"),
    "plugin": ("plugins", "plugin"),
    "serve": ("serve", "init", "fake-upstream"),
    "usage": ("usage", "trace"),
}
"""The commands of each file. Any other command is in the file of its name."""
FILE_OF: Final = {name: file for file, names in FILES.items() for name in names}
OF_THE_DISK: Final = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)
"""Errors that say themselves what is wrong: a disk that is full or read-only, a file of another user."""
MARKUP: Final = None
"""Help is plain text: to format it takes longer than to import what most commands need."""
UsageError: Any = typer.BadParameter.__mro__[1]  # typer has no public name for it


def add(app: typer.Typer, *names: str) -> None:
    """Add commands to `app`, of which those with a callback have a help of their own. Their files are imported."""
    for name in names:
        made = getattr(import_module(f"gateway.cli.{FILE_OF.get(name, name)}"), name.replace("-", "_"))
        if not isinstance(made, typer.Typer):
            app.command(name)(made)
        elif made.registered_callback:
            app.add_typer(made, name=name)
        else:
            app.add_typer(made, name=name, help=COMMANDS[name], no_args_is_help=True)


def first_sentence(text: str) -> str:
    """Return the first sentence of a help, which stands for it in a list of commands."""
    return text.partition("\n\n")[0].replace("\n", " ").partition(". ")[0].removesuffix(".") + "."


class Commands(Mapping[str, Any]):
    """The commands by their names. The file of one is imported when it is looked up: all of them take half a second."""

    def __getitem__(self, name: str) -> Any:
        if name not in COMMANDS:
            raise KeyError(name)
        app = typer.Typer(rich_markup_mode=MARKUP)
        add(app, name)
        command = get_group(app).commands[name]
        for each in getattr(command, "commands", {}).values():
            each.short_help = first_sentence(each.help or "")
        return command

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class Program(TyperGroup):
    """A group of commands that prints errors as one line on standard error, without a traceback."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = Commands()  # type: ignore[assignment]

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write what each command does without importing it."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take `help` for `--help`: `gateway help account` is `gateway account --help`."""
        exits.look_at(args)
        return super().parse_args(ctx, [*args[1:], "--help"] if args[:1] == ["help"] else args)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except UsageError as error:
            error.message = shown(error.message)
            raise
        except GatewayError as error:
            raise exits.failed_with(error) from None
        except UnicodeEncodeError:
            raise exits.refuse("an argument is not text in UTF-8", "misconfigured") from None
        except OSError as error:
            if error.errno not in OF_THE_DISK:
                raise
            raise exits.refuse(f"{error.filename or 'the disk'}: {error.strerror}", "refused") from None


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
        epilog=f"\b\nExit codes:\n{exits.in_words()}\n\nWith `--json`, errors are JSON, too: `kind` and `message`.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=MARKUP,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_options)
    return app
