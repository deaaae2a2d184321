"""The state of channels that all workers and machines share: failures, cool-downs, calls in flight, and what is disabled.

1. One script decides everything, by the store's clock. A worker reports and asks; it decides nothing for other workers.
2. A channel cools down after too many failures, or at once if the upstream says so; each further time for longer, up to a
   maximum. When the cool-down is over, one call is let through as a probe, and its outcome decides.
3. A failure that a request can cause counts against its account first. An account whose calls keep failing cools down by
   itself. The channel cools down for all only when the calls of two accounts fail. Accounts are stored as digests.
4. A cool-down is firm after repeated failures. One that is not firm only makes other channels preferred.
5. What a dead process held expires: slots, probes and counts of calls in flight are leased.
6. The state of a channel that no gateway has expires after a week, except that it or a credential of it is switched off.
7. Credentials that are set aside are part of a channel's state: `gateway.store.credential_states`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec

from gateway.store.channel_states import (
    NOTE,
    AccountReport,
    AccountStatus,
    Admission,
    ChannelLimits,
    ChannelReport,
    ChannelSnapshot,
    ChannelStatus,
    Condition,
    CooldownRules,
    Disabling,
    Refusal,
    snapshot_of,
)
from gateway.store.client.client import Client, Script
from gateway.store.credential_states import CredentialStates, CredentialStatus, fingerprint_of

__all__ = [
    "AccountReport",
    "AccountStatus",
    "Admission",
    "ChannelLimits",
    "ChannelReport",
    "ChannelSnapshot",
    "ChannelStatus",
    "Channels",
    "Condition",
    "CooldownRules",
    "Disabling",
    "Refusal",
]

_SCRIPT: Final = Script.load(Path(__file__).with_name("channels.lua"))
_encode: Final = msgspec.json.Encoder().encode


_CONDITIONS: Final = tuple(Condition)


class Channels:
    """The channels of one store, by their names in the configuration."""

    def __init__(
        self,
        client: Client,
        cooldown: CooldownRules = CooldownRules(),  # noqa: B008 - frozen
    ) -> None:
        self._client = client
        self.credentials = CredentialStates()
        self.cooldown = cooldown
        self.on_status: Callable[[Mapping[str, ChannelStatus]], None] = lambda statuses: None
        """Called with the status of the channels, whenever this process has learned it."""

    async def admit(
        self, request_id: str, channels: Sequence[ChannelLimits], insist: Collection[str] = ()
    ) -> Admission:
        """Take a slot of the first of `channels` that has one, in one round trip. Raises `StoreAway`.

        Where none admits the call, those in `insist` are asked again as if they did not cool. After `StoreAway` a slot may have
        been taken; reporting that the request has left is right in either case.
        """
        return await self._admit("admit", request_id, channels, insist)

    async def look(self, channels: Sequence[ChannelLimits]) -> Admission:
        """Return what `admit` would return now without a last resort. Takes no slot. Raises `StoreAway`."""
        return await self._admit("look", "", channels, ())

    async def look_alone(self, channel: ChannelLimits, *, cools: bool) -> Admission:
        """Return what `admit` would return for a call that only this channel may serve; with `cools`, not while it cools."""
        return await self._admit("look_alone", "", [channel], () if cools else (channel.channel,))

    async def sync(self, worker: str, reports: Mapping[str, ChannelReport]) -> dict[str, ChannelStatus]:
        """Send a worker's reports and return the status of the channels; `credentials` learns which are set aside.

        Raises `StoreAway`; the store then has all reports or none.
        """
        rules = self.cooldown
        text = _encode(list(reports.values()))
        arguments: list[str | bytes | int] = [
            "sync",
            worker,
            text,
            rules.first_ms,
            rules.max_ms,
            rules.window_ms,
            rules.min_failures,
        ]
        raw = await self._client.run(_SCRIPT, _keys(list(reports)), arguments)
        statuses = {
            name: ChannelStatus(
                _CONDITIONS[condition],
                int(cool_ms),
                bool(firm),
                {digest.decode(): AccountStatus(int(ms), bool(its)) for digest, ms, its in accounts},
                error.decode(),
            )
            for name, (condition, cool_ms, firm, accounts, error, _) in zip(reports, raw, strict=True)
        }
        for name, (*_, aside) in zip(reports, raw, strict=True):
            self.credentials.learn(name, aside)
        self.on_status(statuses)
        return statuses

    async def set_enabled(self, channel: str, enabled: bool, *, by: str = "", reason: str = "") -> None:
        """Disable a channel for all gateways, or enable it, which also ends its cool-down. Raises `StoreAway`.

        `by` and `reason` are shown with the channel while it is disabled.
        """
        state, _, _, accounts = _keys([channel])
        if enabled:
            await self._client.call("DEL", accounts)
            await self._client.call(
                "HDEL", state, "disabled", NOTE, "until", "firm", "probe", "streak", "ok", "failed", "turn"
            )
        else:
            seconds, micros = await self._client.call("TIME")
            note = Disabling(int(seconds) * 1000 + int(micros) // 1000, by, reason)
            await self._client.call("HSET", state, "disabled", 1, NOTE, _encode(note))
            await self._client.call("PERSIST", state)

    async def switch_credential(self, channel: str, credential: str, state: Literal["on", "off", "try"]) -> None:
        """Switch a credential off for all gateways, or on, or let one that was refused be used again now. Raises `StoreAway`."""
        key, fingerprint = _keys([channel])[0], fingerprint_of(credential)
        if state == "off":
            seconds, micros = await self._client.call("TIME")
            since_ms = int(seconds) * 1000 + int(micros) // 1000
            await self._client.call("HSET", key, f"off:{fingerprint}", since_ms)
            await self._client.call("PERSIST", key)
        elif state == "on":
            await self._client.call("HDEL", key, f"off:{fingerprint}", f"key:{fingerprint}")
        else:
            await self._client.call("HDEL", key, f"key:{fingerprint}")

    def credentials_of(
        self, snapshot: ChannelSnapshot, credentials: Sequence[str]
    ) -> list[tuple[str, CredentialStatus]]:
        """Return the fingerprint and the status of each of a channel's credentials, in the order of the configuration."""
        prints = map(fingerprint_of, credentials)
        return [(each, snapshot.credentials.get(each, CredentialStatus())) for each in prints]

    async def show(self, channels: Sequence[str]) -> list[ChannelSnapshot]:
        """Return a snapshot of each channel, in the given order. Raises `StoreAway`."""
        clock = self._client.submit("TIME")
        states = [self._client.submit("HGETALL", _keys([name])[0]) for name in channels]
        accounts = [self._client.submit("HVALS", _keys([name])[3]) for name in channels]
        seconds, micros = await clock
        now_ms = int(seconds) * 1000 + int(micros) // 1000
        return [
            snapshot_of(name, await state, await failing, now_ms)
            for name, state, failing in zip(channels, states, accounts, strict=True)
        ]

    async def _admit(
        self, operation: str, request_id: str, channels: Sequence[ChannelLimits], insist: Collection[str]
    ) -> Admission:
        numbers = [
            number
            for limits in channels
            for number in (
                limits.concurrent,
                limits.requests_per_minute,
                limits.lease_ms,
                limits.probe_lease_ms,
                int(limits.channel in insist),
            )
        ]
        keys = _keys([limits.channel for limits in channels])
        index, probe, wait_ms, *why = await self._client.run(_SCRIPT, keys, [operation, request_id, *numbers])
        if index:
            return Admission(index - 1, bool(probe), int(wait_ms))
        refusals = [Refusal(reason.decode(), int(ms), error.decode()) for reason, ms, error in why[0]]
        return Admission(None, bool(probe), int(wait_ms), refusals)


def _keys(channels: Sequence[str]) -> list[str]:
    """Return the keys, all in one hash slot of a cluster, since one request may try several channels at once."""
    return [f"gw:{{channels}}:{name}:{kind}" for name in channels for kind in ("state", "slots", "calls", "accounts")]
