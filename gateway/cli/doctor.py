"""`gateway doctor`: a diagnosis from the caller's side."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from gateway.cli.common import JsonOption, TokenOption, console, print_json
from gateway.tools.doctor import diagnose

SIGNS = {"well": "well", "ill": "ILL ", "note": "note"}


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command()(doctor)


def doctor(
    base_url: Annotated[str, typer.Option(help="The base address that the client uses; it ends in /v1.")],
    model: Annotated[str, typer.Option(help="The model to request.")],
    token: TokenOption = "",
    as_json: JsonOption = False,
) -> None:
    """Find out from the caller's side why requests do not arrive or fail, and what to do about it.

    At most one minimal streaming request is sent, which is charged like any other. The exit code is 1 if a check fails.

    Example: `GATEWAY_TOKEN=sk-... gateway doctor --base-url http://127.0.0.1:8080/v1 --model demo-words`
    """

    async def run() -> bool:
        ill = False
        async for diagnosis in diagnose(base_url, token, model):
            ill = ill or diagnosis.verdict == "ill"
            if as_json:
                print_json(diagnosis)
                continue
            console().print(f"{SIGNS[diagnosis.verdict]}  {diagnosis.subject}: {diagnosis.text}")
            if diagnosis.remedy:
                console().print(f"      {diagnosis.remedy}")
        return ill

    if asyncio.run(run()):
        raise typer.Exit(1)
