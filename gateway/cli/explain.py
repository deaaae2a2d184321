"""`gateway explain`: what would become of a request, and why; for people and for scripts."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated

import typer

from gateway import loading
from gateway.chat.request import BodyRules
from gateway.cli.common import ConfigOption, JsonOption, TokenOption, console, print_json, store_of
from gateway.config.schema import find, load
from gateway.services import services_of
from gateway.tools.explain import Explanation
from gateway.tools.explain import explain as explained


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(explain)


def explain(
    model: Annotated[str, typer.Option(help="The model that is asked for.")],
    token: TokenOption = "",
    text: Annotated[str, typer.Option(help="What the one message says; its length counts.")] = "Say hello",
    max_tokens: Annotated[int | None, typer.Option(help="The ceiling that the caller sets.")] = None,
    address: Annotated[str, typer.Option(help="Where the caller connects from.")] = "127.0.0.1",
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run the chain dry against the store as it is now: each plugin's verdict, the price, the hold, the channels.

    Nothing is sent, held, counted or charged. Exit code 1 unless the request would be served.

    Example: `GATEWAY_TOKEN=sk-... gateway explain --model gpt-4o-mini --max-tokens 500`
    """
    loaded = load(find(config))
    chain = loading.build(loaded)
    body: dict[str, object] = {"model": model, "stream": True, "messages": [{"role": "user", "content": text}]}
    if max_tokens is not None:
        body["max_tokens"] = max_tokens
    headers = [("Authorization", f"Bearer {token}")] if token else []
    rules = BodyRules(allow_non_streaming=loaded.config.port.allow_non_streaming)

    async def run() -> Explanation:
        async with store_of(loaded.config) as store:
            await chain.start(services_of(loaded.config, store))
            try:
                return await explained(chain, headers, json.dumps(body).encode(), rules, address)
            finally:
                await chain.stop()

    told = asyncio.run(run())
    if as_json:
        print_json(told)
    else:
        console().print(_in_words(told))
    if not told.served:
        raise typer.Exit(1)


def _in_words(told: Explanation) -> str:
    lines = [f"{each.verdict:<8}  {each.plugin}: {each.text}" for each in told.plugins]
    if told.price:
        lines.append(f"price     {', '.join(f'{name} {value}' for name, value in told.price.items())}")
    for turn in told.channels:
        named = f"{turn.verdict:<8}  channel {turn.channel}, as {turn.model}"
        lines.append(f"{named}: {turn.text}" if turn.text else named)
    if told.refusal is not None:
        by = f" by {told.refusal.by}" if told.refusal.by else ""
        lines.append(f"The request would be refused{by}: {told.refusal.status} {told.refusal.code}.")
    elif told.served:
        lines.append("The request would be served.")
    else:
        lines.append(
            "Whether the request would be served cannot be told: nothing that explains itself chose a channel."
        )
    return "\n".join(lines)
