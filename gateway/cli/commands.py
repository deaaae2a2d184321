"""The command line with all its commands. Each command's file has a `register(app)`."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from gateway.cli import (
    account,
    alerts,
    channels,
    check,
    diff,
    doctor,
    explain,
    fake_upstream,
    plugin,
    plugins,
    prices,
    reconcile,
    serve,
    token,
    trace,
    usage,
    verify,
)
from gateway.errors import GatewayError, Misconfigured
from gateway.proxy import event_pass


class Program(TyperGroup):
    """A group of commands that prints errors as one line on standard error, without a traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except GatewayError as error:
            typer.echo(f"gateway: {error}", err=True)
            raise typer.Exit(2 if isinstance(error, Misconfigured) else 1) from None


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"sluicegate {version('sluicegate')}, {event_pass.description()}")
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
    """Return the command line, its commands in the order in which `--help` lists them."""
    app = typer.Typer(
        name="gateway",
        cls=Program,
        help="A streaming chat-completion gateway. To try it: `gateway serve --config config/demo.yaml`.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="markdown",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_options)
    for command in (
        serve,
        check,
        diff,
        plugins,
        plugin,
        channels,
        prices,
        account,
        token,
        alerts,
        usage,
        trace,
        verify,
        reconcile,
        explain,
        doctor,
        fake_upstream,
    ):
        command.register(app)
    return app
