"""`gateway explain`: a dry run of a request through the chain."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Annotated, Any

import typer

from gateway import loading
from gateway.chat.request import BodyRules
from gateway.cli.common import ConfigOption, JsonOption, TokenOption, console, found, print_json, store_of
from gateway.config.schema import load
from gateway.errors import StoreAway
from gateway.services import services_of
from gateway.tools.explain import Explanation
from gateway.tools.explain import explain as explain_request


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command()(explain)


def explain(
    model: Annotated[str, typer.Option(help="The model of the request.")],
    token: TokenOption = "",
    text: Annotated[str, typer.Option(help="The text of its one message, whose length counts.")] = "Say hello",
    max_tokens: Annotated[int | None, typer.Option(help="The `max_tokens` of the request.")] = None,
    address: Annotated[str, typer.Option(help="The address that the caller connects from.")] = "127.0.0.1",
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what would happen to a request now: each plugin's decision, the price, the hold, the channels.

    Nothing is sent, held, counted or charged. The exit code is 1 unless the request would be served.

    Example: `GATEWAY_TOKEN=sk-... gateway explain --model gpt-4o-mini --max-tokens 500`
    """
    loaded = load(found(config))
    chain = loading.build(loaded)
    body: dict[str, object] = {"model": model, "stream": True, "messages": [{"role": "user", "content": text}]}
    if max_tokens is not None:
        body["max_tokens"] = max_tokens
    headers = [("Authorization", f"Bearer {token}")] if token else []
    rules = BodyRules(allow_non_streaming=loaded.config.port.allow_non_streaming)

    async def run() -> Explanation:
        async with store_of(loaded.config) as store:
            with suppress(StoreAway):  # the chain says it
                await store.tokens.check_pepper()
            await chain.start(services_of(loaded.config, store))
            try:
                return await explain_request(chain, headers, json.dumps(body).encode(), rules, address)
            finally:
                await chain.stop()

    explanation = asyncio.run(run())
    if as_json:
        print_json(explanation)
    else:
        console().print(_in_words(explanation))
    if not explanation.served:
        raise typer.Exit(1)


def _in_words(explanation: Explanation) -> str:
    lines = [f"{each.verdict:<8}  {each.plugin}: {each.text}" for each in explanation.plugins]
    if explanation.price:
        lines.append(f"price     {_terms(explanation.price)}")
    for choice in explanation.channels:
        named = f"{choice.verdict:<8}  channel {choice.channel}, as {choice.model}"
        lines.append(f"{named}: {choice.text}" if choice.text else named)
        if choice.request:
            lines.append(f"request   {choice.request}")
        if choice.cost:
            lines.append(f"cost      {_terms(choice.cost)}")
    if explanation.refusal is not None:
        by = f" by {explanation.refusal.by}" if explanation.refusal.by else ""
        lines.append(f"The request would be refused{by}: {explanation.refusal.status} {explanation.refusal.code}.")
    elif explanation.served:
        unknown = [each.plugin for each in explanation.plugins if each.verdict == "unknown"]
        unless = f", unless it is refused by {' or '.join(unknown)}, which cannot say" if unknown else ""
        lines.append(f"The request would be served{unless}.")
    else:
        lines.append(
            "It is not known whether the request would be served: no plugin with an `explain` chose a channel."
        )
    return "\n".join(lines)


def _terms(price: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in price.items())
