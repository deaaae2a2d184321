"""The command `gateway`: one file per noun. Exit codes: 0 done, 1 refused or found wrong, 2 misused or misconfigured."""

from __future__ import annotations

import sys

import typer

from gateway.errors import GatewayError, Misconfigured

app = typer.Typer(
    name="gateway",
    help="A streaming chat-completion gateway. Try `gateway serve --config config/demo.yaml`.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Run the command line; what is a user's mistake is one line on stderr, never a traceback."""
    from gateway.cli import commands

    commands.register(app)
    try:
        app()
    except Misconfigured as error:
        print(f"gateway: {error}", file=sys.stderr)
        sys.exit(2)
    except GatewayError as error:
        print(f"gateway: {error}", file=sys.stderr)
        sys.exit(1)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)
