"""`gateway explain`: a dry run of a request through the chain."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Any, Final

import msgspec
import typer

from gateway.base.amounts import amount
from gateway.base.errors import StoreAway
from gateway.base.text import shown
from gateway.chain import loading
from gateway.chain.services import Store, services_of
from gateway.chat.request import BodyRules
from gateway.cli.common import (
    ConfigOption,
    JsonOption,
    TokenOption,
    found,
    print_json,
    print_table,
    refuse,
    store_of,
)
from gateway.cli.named import account_in
from gateway.config.schema import load
from gateway.domain.facts import AskedFor
from gateway.store.accounts import unknown
from gateway.tools.explain import Explanation
from gateway.tools.explain import explain as explain_request

AMOUNTS: Final = ("input", "output", "cached_input", "cache_write", "request")
"""The terms of a price that are amounts in micros."""


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command()(explain)


def explain(
    model: Annotated[
        str | None, typer.Option(help="The model of the request. Default: each model, one after another.")
    ] = None,
    token: TokenOption = "",
    account: Annotated[
        str | None, typer.Option(metavar="ID", help="In place of a token: what this account and its group allow.")
    ] = None,
    token_id: Annotated[
        str | None, typer.Option(metavar="ID", help="In place of a token: the id of one, as in alice-1a2b3c4d.")
    ] = None,
    text: Annotated[str, typer.Option(help="The text of its one message, whose length counts.")] = "Say hello",
    max_tokens: Annotated[int | None, typer.Option(help="The `max_tokens` of the request.")] = None,
    address: Annotated[str, typer.Option(help="The address that the caller connects from.")] = "127.0.0.1",
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what would happen to a request now: each plugin's decision, the price, the hold, the channels.

    Nothing is sent, held, counted or charged. The exit code is 1 unless the request would be served.

    Without the caller's secret, name its token by `--token-id`, or its account by `--account`: then no token restricts it.

    Example: `gateway explain --account alice --model gpt-4o-mini --max-tokens 500`
    """
    if account is not None and token_id is not None:
        raise typer.BadParameter("give `--account` or `--token-id`, not both: a token's id has its account in it")
    loaded = load(found(config))
    if model is None and not loaded.config.models:
        raise refuse("the configuration has no models", "not_found")
    chain = loading.build(loaded)
    headers = [("Authorization", f"Bearer {token}")] if token else []
    rules = BodyRules(allow_non_streaming=loaded.config.port.allow_non_streaming)

    def body(model: str) -> bytes:
        more = {} if max_tokens is None else {"max_tokens": max_tokens}
        messages = [{"role": "user", "content": text}]
        return json.dumps({"model": model, "stream": True, "messages": messages, **more}).encode()

    async def run() -> dict[str, Explanation]:
        async with store_of(loaded.config) as store:
            asked = await _asked(store, account, token_id)
            with suppress(StoreAway):  # the chain says it
                await store.tokens.check_pepper()
            await chain.start(services_of(loaded.config, store))
            try:
                return {
                    name: await explain_request(chain, headers, body(name), rules, address, asked)
                    for name in ([*loaded.config.models] if model is None else [model])
                }
            finally:
                await chain.stop()

    explanations = asyncio.run(run())
    if model is not None:
        _print(explanations[model], as_json)
    else:
        _print_all(explanations, as_json)
    if not any(explanation.served for explanation in explanations.values()):
        raise typer.Exit(1)


async def _asked(store: Store, account: str | None, token_id: str | None) -> AskedFor | None:
    """Return the account and the token that are named, which must exist; None where neither is."""
    if token_id is not None:
        return AskedFor((await store.tokens.get(token_id)).id.rpartition("-")[0], token_id)
    if account is None:
        return None
    account_id = await account_in(store, account)
    if await store.accounts.get(account_id) is None:
        raise unknown(account_id)
    return AskedFor(account_id)


def _print(explanation: Explanation, as_json: bool) -> None:
    if as_json:
        print_json(explanation)
    else:
        print("\n".join(map(shown, _in_words(explanation).splitlines())))


def _print_all(explanations: Mapping[str, Explanation], as_json: bool) -> None:
    """Print a line for each model: whether it would be served, or which plugin refuses it and why."""
    if as_json:
        for model, explanation in explanations.items():
            print_json({"model": model, **msgspec.to_builtins(explanation)})
        return
    print_table(("model", "result", "why"), (_row(*each) for each in explanations.items()), empty="")


def _row(model: str, explanation: Explanation) -> tuple[str, str, str]:
    if explanation.refusal is not None:
        by = f"{explanation.refusal.by}: " if explanation.refusal.by else ""
        message = explanation.refusal.message.rpartition("The reason: ")[2]
        return model, f"refused: {explanation.refusal.status} {explanation.refusal.code}", by + message
    if explanation.served:
        first = next(choice for choice in explanation.channels if choice.verdict == "first")
        return model, "served", f"by channel {first.channel}"
    return model, "not known", "no plugin with an `explain` chose a channel"


def _in_words(explanation: Explanation) -> str:
    lines = []
    for each in explanation.plugins:
        lines.append(f"{each.verdict:<8}  {each.plugin}: {each.text}")
        lines += [f"changes   {line}" for line in each.changes]
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
    """Return the terms of a price, with amounts in units of the currency; those of tokens are for a million of them."""
    shown = {
        name.removesuffix("_micros"): amount(value) if name in AMOUNTS or name.endswith("_micros") else value
        for name, value in price.items()
    }
    return ", ".join(f"{name} {value}" for name, value in shown.items())
