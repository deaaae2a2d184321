"""Operations on channels: their condition, which all gateways of a store share, and a switch for each and for its credentials."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Final, Literal

import msgspec

from gateway.admin.actions.action import Page, Scope, action
from gateway.admin.actions.local import LocalClient
from gateway.base.errors import GatewayError
from gateway.base.ids import utc
from gateway.base.text import counted
from gateway.config.channel import Channel
from gateway.store.channels import ChannelFigures, ChannelSnapshot, Condition, CredentialState

if TYPE_CHECKING:
    from gateway.config.schema import Config

MOST_REASON: Final = 200
COMMAND: Final = "command of "
"""What the name of somebody who runs a command begins with."""


class Credential(msgspec.Struct, frozen=True):
    """A credential by its number in `api_keys`, counted from 1; never its text. `fingerprint`: a short hash, to tell keys apart.

    One that is set aside has since when, until when (null: until it is switched on), and why.
    """

    number: int
    state: CredentialState
    since: str | None
    until: str | None
    reason: str
    fingerprint: str


class ShownDisabling(msgspec.Struct, frozen=True):
    """When an operator disabled a channel, who that was, and why, as far as it was said."""

    at: str
    by: str
    reason: str


class ChannelNow(msgspec.Struct, frozen=True):
    """A channel as all gateways of the store see it.

    `in_words`: its condition, with for how many accounts or until when. `cool_ms`: the rest of its cool-down, and `until` its end.
    `figures`: its calls of the last minutes. `failing_accounts`: how many accounts fail there by themselves. `firm`: it is not
    called while it cools, even where no other channel can serve. `disabling`: who disabled it, when and why. `request`: what the
    file adds to its requests or leaves out, without values.
    """

    channel: str
    condition: Condition
    in_words: str
    cool_ms: int
    until: str | None
    in_flight: int
    figures: ChannelFigures
    last_error: str
    last_error_at: str | None
    failing_accounts: int
    firm: bool
    credentials: list[Credential]
    disabling: ShownDisabling | None
    request: str


class DisablingReason(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Why a channel is disabled."""

    reason: Annotated[str, msgspec.Meta(max_length=MOST_REASON)] = ""


class Switch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What becomes of a credential. `try`: one that was refused may be used again now."""

    state: Literal["on", "off", "try"]


class ChannelTest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is tried: a model of the configuration, by default the first that the channel serves, and a credential by its number."""

    model: str | None = None
    credential: Annotated[int, msgspec.Meta(ge=1)] = 1


class ChannelTestResult(msgspec.Struct, frozen=True):
    """How the upstream answered. `model` is its name there. `status` is null where no answer came. `text` has no credential."""

    channel: str
    model: str
    good: bool
    status: int | None
    took_ms: int
    text: str


@action("GET", "/channels", Scope.READ)
async def list_(client: LocalClient) -> Page[ChannelNow]:
    """List the channels of the configuration with their conditions, calls in flight, figures and the state of each credential."""
    return Page(await _now(client, list(client.config.channels)))


@action("GET", "/channels/{name}", Scope.READ)
async def read(client: LocalClient, name: str) -> ChannelNow:
    """Return a channel with its condition, calls in flight, figures and the state of each credential."""
    known(client.config, name)
    (found,) = await _now(client, [name])
    return found


@action("POST", "/channels/{name}/disable", Scope.CHANNELS)
async def disable(client: LocalClient, name: str, body: DisablingReason) -> ChannelNow:
    """Disable a channel: it gets no new requests until it is enabled. Open streams continue. Gateways notice within a second."""
    return await _switch(client, name, enabled=False, reason=body.reason)


@action("POST", "/channels/{name}/enable", Scope.CHANNELS)
async def enable(client: LocalClient, name: str) -> ChannelNow:
    """Enable a channel, and end its cool-down. Gateways notice within a second."""
    return await _switch(client, name, enabled=True)


@action("POST", "/channels/{name}/credentials/{number}", Scope.CHANNELS)
async def credential(client: LocalClient, name: str, number: str, body: Switch) -> ChannelNow:
    """Switch a credential off or on for all gateways, or let one that the upstream refused be tried again now."""
    credentials = known(client.config, name).credentials
    if not (number.isascii() and number.isdigit()) or not 1 <= int(number[:6]) <= len(credentials):
        has = f"has {counted(len(credentials), 'credential')}, counted from 1" if credentials else "has no credentials"
        raise GatewayError(f"{name} {has}")
    (before,) = await _now(client, [name])
    index = int(number) - 1
    client.change.before = before.credentials[index]
    if body.state == "try" and before.credentials[index].state is CredentialState.OFF:
        raise GatewayError(
            f"credential {number} of {name} is switched off: gateway channels credential {name} {number} on"
        )
    await client.store.channels.switch_credential(name, credentials[index], body.state)
    (after,) = await _now(client, [name])
    client.change.after = after.credentials[index]
    return after


@action("POST", "/channels/{name}/test", Scope.CHANNELS, audited=False)
async def test(client: LocalClient, name: str, body: ChannelTest) -> ChannelTestResult:
    """Send one small request to a channel's upstream and say how it answers. The upstream may bill it; no account is charged.

    It is sent also to a channel that is disabled or cools down, and does not change its condition.
    """
    from gateway.tools import channel_test  # it imports aiohttp's client, which takes a fifth of a second

    channel = known(client.config, name)
    if body.credential > max(1, len(channel.credentials)):
        raise GatewayError(f"{name} has {counted(len(channel.credentials), 'credential')}, counted from 1")
    model = _model_there(client.config, name, body.model)
    dialect = None
    if channel.dialect is not None:
        from gateway.chain import loading

        dialect = (await asyncio.to_thread(loading.build, client.loaded)).dialects[channel.dialect]
    own = (*channel.credentials, "")[body.credential - 1]
    verdict = await channel_test.try_channel(channel_test.ChannelCall(channel, model, own, dialect))
    return ChannelTestResult(name, model, verdict.good, verdict.status, verdict.took_ms, verdict.text)


def known(config: Config, name: str) -> Channel:
    """Return a channel of the configuration. Raises `GatewayError` for any other name."""
    if name not in config.channels:
        has = ", ".join(config.channels) or "none yet"
        raise GatewayError(f"there is no channel {name}; the configuration has: {has}").of_kind("not_found")
    return config.channels[name]


async def _now(client: LocalClient, names: Sequence[str]) -> list[ChannelNow]:
    channels = client.config.channels
    return [_described(client, each, channels[each.channel]) for each in await client.store.channels.show(names)]


def _described(client: LocalClient, snapshot: ChannelSnapshot, channel: Channel) -> ChannelNow:
    statuses = client.store.channels.credentials_of(snapshot, channel.credentials)
    credentials = [
        Credential(number, each.state, _second(each.since_ms), _second(each.until_ms), each.reason, fingerprint)
        for number, (fingerprint, each) in enumerate(statuses, 1)
    ]
    used = any(each.state is CredentialState.IN_USE for each in credentials)
    if credentials and not used and snapshot.condition is not Condition.DISABLED:
        snapshot = msgspec.structs.replace(snapshot, condition=Condition.NO_CREDENTIAL)
    fields = {name: getattr(snapshot, name) for name in ChannelNow.__struct_fields__ if hasattr(snapshot, name)}
    noted = snapshot.disabling
    added = {
        "credentials": credentials,
        "until": _second(snapshot.until_ms),
        "last_error_at": _second(snapshot.last_error_at_ms),
        "disabling": noted and ShownDisabling(_second(noted.at_ms) or "", noted.by, noted.reason),
        "request": channel.request_in_words,
    }
    return ChannelNow(**fields | added)


def _second(ms: int | None) -> str | None:
    return None if ms is None else f"{utc(ms)[:19]}Z"


async def _switch(client: LocalClient, name: str, *, enabled: bool, reason: str = "") -> ChannelNow:
    known(client.config, name)
    (before,) = await _now(client, [name])
    by = client.actor.name.removeprefix(COMMAND)
    await client.store.channels.set_enabled(name, enabled, by=by, reason=reason)
    (after,) = await _now(client, [name])
    client.change.before = {"condition": before.condition, "disabling": before.disabling}
    client.change.after = {"condition": after.condition, "disabling": after.disabling}
    return after


def _model_there(config: Config, channel: str, wanted: str | None) -> str:
    """Return the name, at the channel, of a model that it serves."""
    names = {
        name: serving.model or name
        for name, model in config.models.items()
        for serving in model.servings
        if serving.use == channel
    }
    if not names:
        raise GatewayError(f"no model of the configuration is served by {channel}").of_kind("not_found")
    if wanted is None:
        return next(iter(names.values()))
    if wanted not in names:
        serves = ", ".join(names)
        raise GatewayError(f"{channel} does not serve the model {wanted}; it serves: {serves}").of_kind("not_found")
    return names[wanted]
