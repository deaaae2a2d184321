"""`gateway doctor`: the caller's diagnosis, for people and for scripts."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from gateway.cli.common import JsonOption, TokenOption, console, print_json
from gateway.tools.doctor import diagnose

SIGNS = {"well": "well", "ill": "ILL ", "note": "note"}


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(doctor)


def doctor(
    base_url: Annotated[str, typer.Option(help="What the client is pointed at; ends in /v1.")],
    model: Annotated[str, typer.Option(help="The model to ask for.")],
    token: TokenOption = "",
    as_json: JsonOption = False,
) -> None:
    """Find out from the caller's side why requests do not arrive or fail, and what to do. Exit code 1 when something is ill.

    Sends one minimal streaming request at most, which is charged like any other.

    Example: `GATEWAY_TOKEN=sk-... gateway doctor --base-url http://127.0.0.1:8080/v1 --model demo-words`
    """

    async def look() -> bool:
        ill = False
        async for finding in diagnose(base_url, token, model):
            ill = ill or finding.verdict == "ill"
            if as_json:
                print_json(finding)
                continue
            console().print(f"{SIGNS[finding.verdict]}  {finding.subject}: {finding.text}")
            if finding.remedy:
                console().print(f"      {finding.remedy}")
        return ill

    if asyncio.run(look()):
        raise typer.Exit(1)
