"""Every command, put together. A noun's file has a `register(app)` of its own."""

from __future__ import annotations

import typer

from gateway.cli import account, check, fake_upstream, plugins, serve, token, trace, usage


def register(app: typer.Typer) -> None:
    """Add all commands to `app`, in the order in which `--help` shows them."""
    for noun in (serve, check, plugins, account, token, usage, trace, fake_upstream):
        noun.register(app)
