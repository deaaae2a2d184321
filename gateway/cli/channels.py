"""`gateway channels`: the condition of channels and credentials on all machines, and switches; and `gateway models import`."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from datetime import datetime, tzinfo
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from gateway.admin.actions.times import local
from gateway.base.text import printable, shown_in_line
from gateway.cli.client import ApiOption, At, command, run
from gateway.cli.common import ConfigOption, JsonOption, print_json, print_table
from gateway.store.channels import CredentialState

if TYPE_CHECKING:
    from gateway.admin.actions.channels import ChannelNow
    from gateway.tools.channel_test import UpstreamModel


channels = typer.Typer()
MOST_REASON: Final = 200

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The channel's name in the configuration.")]


@channels.callback(invoke_without_command=True)
def show(
    context: typer.Context, config: ConfigOption = None, api: ApiOption = None, as_json: JsonOption = False
) -> None:
    """Show the condition of the channels, and disable or enable them for all gateways that share a store.

    Without a subcommand, each channel is printed with its condition, its calls of the last minutes (how many, the share that
    succeeded, how many the upstream limited by 429, within which time 95 % of the answers began), calls in flight and last error.
    Below them is what the file adds to its requests or leaves out, without values, and each credential that is set aside, by its
    number in `api_keys`, counted from 1.

    Example: `gateway channels --json | jq 'select(.condition != "healthy")'`
    """
    if context.invoked_subcommand is not None:
        return

    run(config, api, lambda client: _show(At(client, api, as_json)), keys=True)


async def _show(at: At) -> None:
    shown = (await at.do("channels.list_")).data
    columns = ("channel", "condition", "calls", "success", "429", "first event p95", "in flight", "last error")
    empty = "There are no channels in the configuration; add one under `channels:`."
    await at.print(shown, columns, _row, empty=empty)
    if at.as_json:
        return
    zone = await at.zone()
    disabled = [row for each in shown for row in _disabled(each, zone)]
    _print_below(("channel", "disabled since", "by", "reason"), disabled)
    _print_below(("channel", "request"), [(each.channel, each.request) for each in shown if each.request])
    aside = [row for each in shown for row in _aside(each, zone)]
    _print_below(("channel", "credential", "state", "since", "until", "reason"), aside)


def _print_below(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    if rows:
        typer.echo()
        print_table(columns, rows, empty="")


@command(channels, options=("config", "api"))
async def disable(
    at: At,
    name: NameArgument,
    reason: Annotated[
        str, typer.Option(metavar="TEXT", help=f"Why, at most {MOST_REASON} characters: `gateway channels` shows it.")
    ] = "",
) -> None:
    """Disable a channel: it gets no new requests until it is enabled. Open streams continue.

    Who did it and when is shown by `gateway channels`.

    Example: `gateway channels disable openai --reason "invoice unpaid, ticket 4711"`
    """
    if len(reason) > MOST_REASON:
        raise typer.BadParameter(f"a reason has at most {MOST_REASON} characters; this one has {len(reason)}")

    await at.do("channels.disable", name, reason=reason)
    typer.echo(f"{name} is disabled; gateways notice within a second")


@command(channels, options=("config", "api"))
async def enable(at: At, name: NameArgument) -> None:
    """Enable a channel, and end its cool-down.

    Example: `gateway channels enable openai`
    """
    await at.do("channels.enable", name)
    typer.echo(f"{name} is enabled; gateways notice within a second")


SWITCHED: Final = {"on": "is switched on", "off": "is switched off", "try": "may be used again"}


@command(channels, options=("config", "api"), keys=True)
async def credential(
    at: At,
    name: NameArgument,
    number: Annotated[int, typer.Argument(metavar="NUMBER", min=1, help="Its number in `api_keys`, counted from 1.")],
    switch: Annotated[
        Literal["on", "off", "try"],
        typer.Argument(metavar="on|off|try", help="try: use one that was refused again now."),
    ],
) -> None:
    """Switch a credential of a channel off or on for all gateways, or let one that the upstream refused be tried again.

    One that is switched off is not used until it is switched on; a channel whose credentials are all off gets no requests. One
    that is tried and refused again is set aside again.

    Example: `gateway channels credential openai 2 off`
    """
    await at.do("channels.credential", name, str(number), state=switch)
    typer.echo(f"credential {number} of {name} {SWITCHED[switch]}; gateways notice within a second")


def _aside(shown: ChannelNow, zone: tzinfo) -> Iterator[tuple[object, ...]]:
    """Yield a row for each credential that is set aside."""
    for each in shown.credentials:
        if each.state is not CredentialState.IN_USE:
            until = _moment(each.until, zone) or (
                "it is tried" if each.state is CredentialState.SPENT else "it is switched on"
            )
            yield (
                shown.channel,
                f"{each.number} ({each.fingerprint})",
                each.state,
                _moment(each.since, zone),
                until,
                each.reason,
            )


def _disabled(shown: ChannelNow, zone: tzinfo) -> Iterator[tuple[object, ...]]:
    """Yield the row for a channel that is disabled, if it is known by whom."""
    if shown.disabling is not None:
        noted = shown.disabling
        yield (shown.channel, _moment(noted.at, zone), printable(noted.by) or "-", printable(noted.reason) or "-")


def _moment(at: str | None, zone: tzinfo) -> str | None:
    return local(at, zone) if at else None


def _row(shown: ChannelNow, _: tzinfo) -> tuple[object, ...]:
    figures = shown.figures
    error = shown.last_error
    if shown.last_error_at is not None:
        minutes, seconds = divmod(
            max(0, round(time.time() - datetime.fromisoformat(shown.last_error_at).timestamp())), 60
        )
        ago = f"{minutes} min" if minutes else f"{seconds} s"
        error += f", {minutes // 60} h {minutes % 60} min ago" if minutes >= 60 else f", {ago} ago"
    return (
        shown.channel,
        shown.in_words,
        figures.calls,
        "" if figures.success is None else f"{100 * figures.success:.1f} %",
        figures.rate_limited,
        "" if figures.first_event_p95_ms is None else f"{figures.first_event_p95_ms} ms",
        shown.in_flight,
        error,
    )


@command(channels, keys=True, needs="nothing")
async def test(
    at: At,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The channel's name in the configuration.")],
    model: Annotated[
        str | None, typer.Option(help="A model of the configuration. Default: the first that this channel serves.")
    ] = None,
    credential: Annotated[int, typer.Option(min=1, help="The number in `api_keys`, counted from 1.")] = 1,
) -> None:
    """Send one small request to a channel's upstream and say how it answers. The upstream may bill it; no account is charged.

    It is sent also to a channel that is disabled or cools down, and does not change its condition. The exit code is 1 unless the
    upstream begins a stream.

    Example: `gateway channels test openai --model gpt-4o-mini`
    """
    tried = await at.do("channels.test", name, model=model, credential=credential)
    if at.as_json:
        print_json(tried)
    else:
        status = "" if tried.status is None else f" with {tried.status}"
        answer = "answers" if tried.good else "fails"
        typer.echo(f"{name} {answer}{status} after {tried.took_ms} ms for {tried.model}: {tried.text}")
    if not tried.good:
        raise typer.Exit(1)


models = typer.Typer()


@command(models, "import", options=("config",), keys=True, needs="nothing")
async def import_(
    at: At,
    name: Annotated[str, typer.Argument(metavar="CHANNEL", help="The channel's name in the configuration.")],
    free: Annotated[
        bool, typer.Option("--free", help="Serve them for nothing, as those of a server of your own.")
    ] = False,
) -> None:
    """Print the models that a channel's upstream serves and that the file does not have yet, as YAML to put into it.

    The upstream is asked for its list, which costs nothing; no file is changed. Prices are left to be filled in: until then the
    file is refused, so that no model is served for nothing by mistake.

    Example: `gateway models import local --free >> gateway.yaml`
    """
    from gateway.admin.actions.channels import known
    from gateway.tools.channel_test import list_models

    served, models = await list_models(known(at.config, name)), at.config.models
    there = {each.model or model for model, one in models.items() for each in one.servings if each.use == name}
    new = [each for each in served if each.name not in there]
    what = "Served by {}, to be put under `models:`" if new else "{} serves nothing that the file does not have"
    typer.echo(f"# {what.format(shown_in_line(name))}")
    for each in new:
        typer.echo(_as_yaml(each, name, free=free))


def _as_yaml(model: UpstreamModel, channel: str, *, free: bool) -> str:
    """Return a model as the file has it. What JSON writes in quotes, YAML reads alike."""
    price = "free: true" if free else "input: PRICE, output: PRICE"
    window = f", context_length: {model.context_length}" if model.context_length else ""
    return f"  {json.dumps(model.name)}: {{{price}{window}, channels: [{json.dumps(channel)}]}}"
