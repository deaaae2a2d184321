"""`gateway serve`: run the gateway."""

from __future__ import annotations

from typing import Annotated

import typer

from gateway.cli.common import ConfigOption, found


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(serve)


def serve(
    config: ConfigOption = None,
    workers: Annotated[
        int | None,
        typer.Option(min=1, max=256, help="Number of worker processes; the default is `workers:` of the file."),
    ] = None,
) -> None:
    """Run the gateway until SIGTERM or Ctrl-C.

    Example: `gateway serve --config config/demo.yaml`
    """
    from gateway.runtime.serve import serve as run

    run(found(config), workers)
