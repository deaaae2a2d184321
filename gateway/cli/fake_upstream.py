"""`gateway fake-upstream`: an upstream for rehearsals."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Annotated

import typer

from gateway.base.errors import Misconfigured, cannot_listen
from gateway.cli.common import print_table
from gateway.fake_upstream import MODES, FakeUpstream


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("fake-upstream")(fake_upstream)


def fake_upstream(
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port to listen on; 0 for any free one.")] = 8089,
    mode: Annotated[str, typer.Option(help="How to answer, or to misbehave; `--modes` lists the modes.")] = "words",
    pace: Annotated[float, typer.Option(min=0, help="Seconds before each event.")] = 0.04,
    modes: Annotated[bool, typer.Option("--modes", help="List the modes and exit.")] = False,
) -> None:
    """Run an OpenAI-compatible upstream that can misbehave on purpose, until Ctrl-C.

    Example: `gateway fake-upstream --port 8089 --mode stall`
    """
    if modes:
        print_table(("mode", "what it does"), MODES.items(), empty="")
        return
    if mode not in MODES:
        raise typer.BadParameter(f"there is no mode `{mode}`; `--modes` lists them", param_hint="--mode")

    async def serve() -> None:
        try:
            async with FakeUpstream(host=host, port=port, mode=mode, pace_s=pace) as upstream:
                typer.echo(f"{mode}: {upstream.base_url}")
                await asyncio.Event().wait()
        except OSError as error:
            raise Misconfigured(f"{cannot_listen(f'{host}:{port}', error)}; change --port") from None

    with suppress(KeyboardInterrupt):
        asyncio.run(serve())
