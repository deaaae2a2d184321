"""`gateway trace`: one request in words, from its arrival to its charge."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from gateway.cli.client import ApiOption, run_at_files
from gateway.cli.common import ConfigOption, JsonOption, print_json
from gateway.cli.exits import EXIT_CODES
from gateway.cli.request_ids import RequestArgument

if TYPE_CHECKING:
    from gateway.admin.actions.action import ActionClient
    from gateway.admin.actions.requests import Story


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command()(trace)


def trace(
    request_id: RequestArgument,
    config: ConfigOption = None,
    api: ApiOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show in a sentence what happened to a request.

    The exit code is 1 if it never arrived, or if it is not found and a gateway that may know of it could not be asked.

    Example: `gateway trace 01a1fccb-1807-7197-9f1b-61a58aba6c92`
    """

    async def work(client: ActionClient) -> Story:
        from gateway.admin.actions import requests

        return await requests.trace(client, request_id)

    told = run_at_files(config, api, work)
    record = told.record
    if as_json:
        unasked = {"unasked": told.unasked} if record is None or told.unasked else {}
        print_json({"id": request_id, "verdict": told.verdict, "record": record} | unasked)
    else:
        from gateway.admin.actions.requests import heading

        typer.echo(f"{request_id}\n{told.verdict}" if record is None else f"{heading(record)}\n{told.verdict}")
    if record is None:
        raise typer.Exit(EXIT_CODES["not_found"][0])
