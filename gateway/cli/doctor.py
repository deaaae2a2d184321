"""`gateway doctor`: a diagnosis from the caller's side."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Annotated

import typer

from gateway.cli.common import JsonOption, TokenOption, print_json
from gateway.tools.doctor import MAX_TOKENS, diagnose

SIGNS = {"well": "well", "ill": "ILL ", "note": "note"}


def doctor(
    base_url: Annotated[
        str,
        typer.Option(help="The base address that the client uses, with a path prefix if it has one; it ends in /v1."),
    ],
    model: Annotated[str, typer.Option(help="The model to request.")],
    token: TokenOption = "",
    ca: Annotated[
        Path | None,
        typer.Option(help="Trust the authorities in this PEM file, and not the system's.", show_default=False),
    ] = None,
    max_tokens: Annotated[
        int,
        typer.Option(
            min=1, help="Ask for an answer of so many tokens: a long one shows whether something on the way cuts it."
        ),
    ] = MAX_TOKENS,
    as_json: JsonOption = False,
) -> None:
    """Find out from the caller's side why requests do not arrive or fail, and what to do about it.

    It asks what lies below the base address, so it works behind proxies and path prefixes; the token is sent only once a gateway
    has answered. At most one minimal streaming request is sent, which is charged like any other. The exit code is 1 if a check
    fails. With `--json`, each line has a `code` that names the finding.

    Example: `GATEWAY_TOKEN=sk-... gateway doctor --base-url http://127.0.0.1:8080/v1 --model demo-words`
    """

    async def run() -> bool:
        ill = False
        async for diagnosis in diagnose(base_url, token, model, ca=ca, max_tokens=max_tokens):
            ill = ill or diagnosis.verdict == "ill"
            if as_json:
                print_json(diagnosis)
                continue
            print(f"{SIGNS[diagnosis.verdict]}  {diagnosis.subject}: {diagnosis.text}")
            if diagnosis.remedy:
                print(f"      {diagnosis.remedy}")
        return ill

    os.environ["NETRC"] = os.devnull  # an entry for the host would be sent in place of the token
    if asyncio.run(run()):
        raise typer.Exit(1)
