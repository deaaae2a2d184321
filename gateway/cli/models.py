"""`gateway models`: the models that an upstream serves, as the file has them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.base.text import shown_in_line
from gateway.cli.common import ConfigOption, found

if TYPE_CHECKING:
    from gateway.tools.channel_test import UpstreamModel

models = typer.Typer(
    no_args_is_help=True, help="Print the models that an upstream serves, as YAML for the file: import."
)


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    app.add_typer(models, name="models")


@models.command("import")
def import_(
    name: Annotated[str, typer.Argument(metavar="CHANNEL", help="The channel's name in the configuration.")],
    free: Annotated[
        bool, typer.Option("--free", help="Serve them for nothing, as those of a server of your own.")
    ] = False,
    config: ConfigOption = None,
) -> None:
    """Print the models that a channel's upstream serves and that the file does not have yet, as YAML to put into it.

    The upstream is asked for its list, which costs nothing; no file is changed. Prices are left to be filled in: until then the
    file is refused, so that no model is served for nothing by mistake.

    Example: `gateway models import local --free >> gateway.yaml`
    """
    import asyncio

    from gateway.admin.actions.channels import known
    from gateway.config.schema import load
    from gateway.tools.channel_test import list_models

    settings = load(found(config)).config
    served = asyncio.run(list_models(known(settings, name)))
    there = {each.model or model for model, one in settings.models.items() for each in one.servings if each.use == name}
    typer.echo(f"# Served by {shown_in_line(name)}, to be put under `models:`")
    for each in served:
        if each.name not in there:
            typer.echo(_as_yaml(each, name, free=free))


def _as_yaml(model: UpstreamModel, channel: str, *, free: bool) -> str:
    """Return a model as the file has it. What JSON writes in quotes, YAML reads alike."""
    price = "free: true" if free else "input: PRICE, output: PRICE"
    window = f", context_length: {model.context_length}" if model.context_length else ""
    return f"  {json.dumps(model.name)}: {{{price}{window}, channels: [{json.dumps(channel)}]}}"
