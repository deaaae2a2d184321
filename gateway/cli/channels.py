"""`gateway channels`: the condition of the channels and their credentials, as all machines share it, and a switch for each."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Annotated

import msgspec
import typer

from gateway.cli.common import (
    ConfigOption,
    JsonOption,
    configuration,
    found,
    print_json,
    print_table,
    refuse,
    run_with_store,
)
from gateway.config.channel import Channel
from gateway.config.schema import load
from gateway.request_id import utc
from gateway.services import Store
from gateway.store.channels import ChannelSnapshot, Condition
from gateway.store.credential_states import CredentialState, CredentialStatus

Credential = tuple[str, CredentialStatus]
"""The fingerprint of a credential, and its status."""

channels = typer.Typer()

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The channel's name in the configuration.")]


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    app.add_typer(channels, name="channels")


@channels.callback(invoke_without_command=True)
def show(context: typer.Context, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Show the condition of the channels, and disable or enable them for all gateways that share a store.

    Without a subcommand, each channel is printed with its condition, calls in flight, time to the first event and last error.
    Below them is what the file adds to its requests or leaves out, without values, and each credential that is set aside, by its
    index in `api_keys`, counted from 0.

    Example: `gateway channels --json | jq 'select(.condition != "healthy")'`
    """
    if context.invoked_subcommand is not None:
        return
    known = _with_credentials(config)

    async def work(store: Store) -> list[tuple[ChannelSnapshot, list[Credential]]]:
        snapshots = await store.channels.show(list(known))
        return [(each, store.channels.credentials_of(each, known[each.channel].credentials)) for each in snapshots]

    shown = run_with_store(config, work)
    if as_json:
        for each, credentials in shown:
            request = known[each.channel].request_in_words
            print_json({**msgspec.to_builtins(each), "request": request, "credentials": [*_numbered(credentials)]})
        return
    columns = ("channel", "condition", "in flight", "latency", "last error")
    print_table(
        columns,
        (_row(each) for each, _ in shown),
        empty="There are no channels in the configuration; add one under `channels:`.",
    )
    aside = [row for each, credentials in shown for row in _aside(each.channel, credentials)]
    requests = [(name, words) for name, each in known.items() if (words := each.request_in_words)]
    if requests:
        typer.echo()
        print_table(("channel", "request"), requests, empty="")
    if aside:
        typer.echo()
        print_table(("channel", "credential", "state", "since", "until", "reason"), aside, empty="")


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


class Switch(StrEnum):
    """What becomes of a credential."""

    ON = "on"
    OFF = "off"
    TRY = "try"


@channels.command()
def credential(
    name: NameArgument,
    number: Annotated[int, typer.Argument(metavar="NUMBER", min=0, help="Its index in `api_keys`, counted from 0.")],
    switch: Annotated[Switch, typer.Argument(metavar="on|off|try", help="try: use one that was refused again now.")],
    config: ConfigOption = None,
) -> None:
    """Switch a credential of a channel off or on for all gateways, or let one that the upstream refused be tried again.

    One that is switched off is not used until it is switched on; a channel whose credentials are all off gets no requests. One
    that is tried and refused again is set aside again.

    Example: `gateway channels credential openai 1 off`
    """
    credentials = _known(name, _with_credentials(config)).credentials
    if number >= len(credentials):
        has = f"has {len(credentials)} credentials, counted from 0" if credentials else "has no credentials"
        raise refuse(f"{name} {has}")

    async def work(store: Store) -> bool:
        (snapshot,) = await store.channels.show([name])
        _, before = store.channels.credentials_of(snapshot, credentials)[number]
        off = before.state is CredentialState.OFF
        if switch is not Switch.TRY or not off:
            await store.channels.switch_credential(name, credentials[number], switch.value)
        return switch is Switch.TRY and off

    if run_with_store(config, work):
        raise refuse(f"credential {number} of {name} is switched off: gateway channels credential {name} {number} on")
    now = {Switch.ON: "is switched on", Switch.OFF: "is switched off", Switch.TRY: "may be used again"}[switch]
    typer.echo(f"credential {number} of {name} {now}; gateways notice within a second")


def _with_credentials(config: ConfigOption) -> Mapping[str, Channel]:
    """Return the channels, whose credentials must be here: the store knows these by their fingerprints."""
    return load(found(config)).config.channels


def _known(name: str, known: Mapping[str, Channel]) -> Channel:
    if name not in known:
        raise refuse(
            f"there is no channel {name}; the configuration has: {', '.join(known) or 'none yet'}", "not_found"
        )
    return known[name]


def _numbered(credentials: Sequence[Credential]) -> Iterator[dict[str, object]]:
    """Yield the credentials of a channel for scripts."""
    for index, (fingerprint, status) in enumerate(credentials):
        yield {
            "index": index,
            "state": status.state,
            "since": _moment(status.since_ms),
            "until": _moment(status.until_ms),
            "reason": status.reason,
            "fingerprint": fingerprint,
        }


def _aside(channel: str, credentials: Sequence[Credential]) -> Iterator[tuple[object, ...]]:
    """Yield a row for each credential that is set aside."""
    for index, (_, status) in enumerate(credentials):
        if status.state is not CredentialState.IN_USE:
            until = _moment(status.until_ms) or "it is switched on"
            yield channel, index, status.state, _moment(status.since_ms), until, status.reason


def _moment(ms: int | None) -> str | None:
    return None if ms is None else f"{utc(ms)[:19]}Z"


def _switch(name: str, config: ConfigOption, *, enabled: bool) -> None:
    _known(name, configuration(config).channels)
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
