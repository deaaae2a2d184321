"""`gateway channels test`: one small request to a channel's upstream."""

from __future__ import annotations

import asyncio
from typing import Annotated

import msgspec
import typer

from gateway import loading
from gateway.cli.common import ConfigOption, JsonOption, found, print_json, refuse
from gateway.config.schema import Config, load


def test(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The channel's name in the configuration.")],
    model: Annotated[
        str | None, typer.Option(help="A model of the configuration. Default: the first that this channel serves.")
    ] = None,
    credential: Annotated[int, typer.Option(min=0, help="The index in `api_keys`, counted from 0.")] = 0,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send one small request to a channel's upstream and say how it answers. The upstream may bill it; no account is charged.

    It is sent also to a channel that is disabled or cools down, and does not change its condition. The exit code is 1 unless the
    upstream begins a stream.

    Example: `gateway channels test openai --model gpt-4o-mini`
    """
    from gateway.tools.channel_trial import Trial, try_channel  # it imports aiohttp, which takes a third of a second

    loaded = load(found(config))
    settings = loaded.config
    if name not in settings.channels:
        known = ", ".join(settings.channels) or "none yet"
        raise refuse(f"there is no channel {name}; the configuration has: {known}", "not_found")
    channel = settings.channels[name]
    if credential >= max(1, len(channel.credentials)):
        raise refuse(f"{name} has {len(channel.credentials)} credentials, counted from 0")
    own = (*channel.credentials, "")[credential]
    upstream_model = _upstream_model(settings, name, model)
    dialect = None if channel.dialect is None else loading.build(loaded).dialects[channel.dialect]
    verdict = asyncio.run(try_channel(Trial(channel, upstream_model, own, dialect)))
    if as_json:
        print_json({"channel": name, "model": upstream_model, **msgspec.to_builtins(verdict)})
    else:
        status = "" if verdict.status is None else f" with {verdict.status}"
        answer = "answers" if verdict.good else "fails"
        typer.echo(f"{name} {answer}{status} after {verdict.took_ms} ms for {upstream_model}: {verdict.text}")
    if not verdict.good:
        raise typer.Exit(1)


def _upstream_model(settings: Config, channel: str, wanted: str | None) -> str:
    """Return the name, at the channel, of a model that it serves."""
    names = {
        name: serving.model or name
        for name, model in settings.models.items()
        for serving in model.servings
        if serving.use == channel
    }
    if not names:
        raise refuse(f"no model of the configuration is served by {channel}", "not_found")
    if wanted is None:
        return next(iter(names.values()))
    if wanted not in names:
        raise refuse(f"{channel} does not serve the model {wanted}; it serves: {', '.join(names)}", "not_found")
    return names[wanted]
