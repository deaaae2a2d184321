"""`gateway channels`: the condition of the channels, as all machines share it, and a switch for each."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from gateway.cli.common import ConfigOption, JsonOption, configuration, print_json, print_table, refuse, run_with_store
from gateway.store.channels import ChannelSnapshot, Condition

channels = typer.Typer()

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The channel's name in the configuration.")]


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    app.add_typer(channels, name="channels")


@channels.callback(invoke_without_command=True)
def show(context: typer.Context, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Show the condition of the channels, and disable or enable them for all gateways that share a store.

    Without a subcommand, each channel is printed with its condition, calls in flight, time to the first event and last error.

    Example: `gateway channels --json | jq 'select(.condition != "healthy")'`
    """
    if context.invoked_subcommand is not None:
        return
    names = list(configuration(config).channels)
    shown = run_with_store(config, lambda store: store.channels.show(names))
    if as_json:
        for each in shown:
            print_json(each)
        return
    columns = ("channel", "condition", "in flight", "latency", "last error")
    print_table(
        columns, map(_row, shown), empty="There are no channels in the configuration; add one under `channels:`."
    )


@channels.command()
def disable(name: NameArgument, config: ConfigOption = None) -> None:
    """Disable a channel: it gets no new requests until it is enabled. Open streams continue.

    Example: `gateway channels disable openai`
    """
    _switch(name, config, enabled=False)


@channels.command()
def enable(name: NameArgument, config: ConfigOption = None) -> None:
    """Enable a channel, and end its cool-down.

    Example: `gateway channels enable openai`
    """
    _switch(name, config, enabled=True)


def _switch(name: str, config: ConfigOption, *, enabled: bool) -> None:
    known = configuration(config).channels
    if name not in known:
        raise refuse(
            f"there is no channel {name}; the configuration has: {', '.join(known) or 'none yet'}", "not_found"
        )
    run_with_store(config, lambda store: store.channels.set_enabled(name, enabled))
    typer.echo(f"{name} is {'enabled' if enabled else 'disabled'}; gateways notice within a second")


def _row(shown: ChannelSnapshot) -> tuple[str, str, int, str, str]:
    condition = str(shown.condition)
    if shown.condition is Condition.COOLING:
        condition += f" for {-(-shown.cool_ms // 1000)} s"
    if shown.failing_accounts:
        condition += f", cooling for {shown.failing_accounts} account{'s' if shown.failing_accounts > 1 else ''} alone"
    error = shown.last_error
    if shown.last_error_at_ms is not None:
        error += f", {max(0, round(time.time() - shown.last_error_at_ms / 1000))} s ago"
    return (
        shown.channel,
        condition,
        shown.in_flight,
        "" if shown.latency_ms is None else f"{shown.latency_ms} ms",
        error,
    )
