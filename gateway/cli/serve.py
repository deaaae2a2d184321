"""`gateway serve`: run the gateway."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from gateway.cli.common import ConfigOption, found

DEFAULT_THRESHOLDS: Final = (700, 10, 10)
"""Of Python's garbage collector."""


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
    import gc

    from gateway.serve.serve import serve as run

    gc.set_threshold(*DEFAULT_THRESHOLDS)
    run(found(config), workers)
