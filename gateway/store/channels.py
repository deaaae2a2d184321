"""The state of channels that all workers and machines share: failures, cool-downs, calls in flight, and what is disabled.

1. One script decides everything, by the store's clock. A worker reports and asks; it decides nothing for other workers.
2. A channel cools down after too many failures, or at once if the upstream says so; each further time for longer, up to a
   maximum. When the cool-down is over, one call is let through as a probe, and its outcome decides.
3. A failure that a request can cause counts against its account first. An account whose calls keep failing cools down by
   itself. The channel cools down for all only when the calls of two accounts fail. Accounts are stored as digests.
4. A cool-down is firm after repeated failures. One that is not firm only makes other channels preferred.
5. What a dead process held expires: slots, probes and counts of calls in flight are leased.
6. The state of a channel that no gateway has expires after a week, except that it is disabled.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Final, Literal

import msgspec

from gateway.store.client.client import Client, Script

_SCRIPT: Final = Script.load(Path(__file__).with_name("channels.lua"))
_encode: Final = msgspec.json.Encoder().encode


class Condition(StrEnum):
    """The condition of a channel. `PROBING`: its cool-down is over, and the next call shows whether it works again."""

    HEALTHY = "healthy"
    COOLING = "cooling"
    PROBING = "probing"
    DISABLED = "disabled"


_CONDITIONS: Final = tuple(Condition)


class CooldownRules(msgspec.Struct, frozen=True):
    """When a channel cools down, and for how long.

    It cools down after `min_failures` failures that are at least half of all calls in the last one to two `window_ms`, or
    that are all calls in one worker's report. The cool-down is `first_ms`, doubled each time that the probe fails, or what
    the upstream asks for if that is longer; at most `max_ms`.
    """

    first_ms: int = 1_000
    max_ms: int = 120_000
    window_ms: int = 10_000
    min_failures: int = 3


class AccountReport(msgspec.Struct):
    """What one worker saw of one account's calls of a channel. `ok`: a call succeeded. `cool_ms` is as in `ChannelReport`."""

    failed: int = 0
    cool_ms: int = -1
    ok: bool = False


class ChannelReport(msgspec.Struct):
    """What one worker saw of one channel since its last report. `cool_ms`: the upstream asks for it; -1: it does not.

    `failed` and `cool_ms` are of failures that no request can cause; the others are in `accounts`.
    """

    ok: int = 0
    failed: int = 0
    took_ms: float = 0
    """The sum, over all calls that were `ok`, of the time from call to first event."""
    cool_ms: int = -1
    error: str = ""
    probe: Literal["", "ok", "failed", "void"] = ""
    left: list[str] = []
    """Requests that have ended, so that their slots are free."""
    in_flight: int = 0
    accounts: dict[str, AccountReport] = {}
    """By the digest of the account: those whose calls failed, or succeeded after failures."""


class ChannelLimits(msgspec.Struct, frozen=True):
    """A channel that a request may call, and its limits; 0 for none. Leases in ms."""

    channel: str
    concurrent: int
    requests_per_minute: int
    lease_ms: int
    probe_lease_ms: int


class Admission(msgspec.Struct, frozen=True):
    """The index of the admitted channel (None: none of them), whether the call is its probe, and in how many ms to retry.

    `wait_ms` of an admission is the rest of a cool-down during which the channel is called for want of another.
    """

    index: int | None
    probe: bool
    wait_ms: int


class AccountStatus(msgspec.Struct, frozen=True):
    """The rest of an account's cool-down at a channel in ms, and whether it is firm."""

    cool_ms: int = 0
    firm: bool = False


class ChannelStatus(msgspec.Struct, frozen=True):
    """A channel's condition, the rest of its cool-down in ms, whether it is firm, and the accounts whose calls fail there."""

    condition: Condition
    cool_ms: int
    firm: bool = False
    accounts: dict[str, AccountStatus] = {}


class ChannelSnapshot(msgspec.Struct, frozen=True):
    """A channel as `gateway channels` shows it.

    `latency_ms`: a moving average of the time from call to first event; None before the first call. `failing_accounts`: how
    many accounts cool down there by themselves, while the channel serves others. `firm`: it is not called while it cools, even
    where no other channel can serve.
    """

    channel: str
    condition: Condition
    cool_ms: int
    in_flight: int
    latency_ms: int | None
    last_error: str
    last_error_at_ms: int | None
    failing_accounts: int = 0
    firm: bool = False


class Channels:
    """The channels of one store, by their names in the configuration."""

    def __init__(self, client: Client, cooldown: CooldownRules = CooldownRules()) -> None:  # noqa: B008 - frozen
        self._client = client
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
        """Send a worker's reports and return the status of the channels.

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
            )
            for name, (condition, cool_ms, firm, accounts) in zip(reports, raw, strict=True)
        }
        self.on_status(statuses)
        return statuses

    async def set_enabled(self, channel: str, enabled: bool) -> None:
        """Disable a channel for all gateways, or enable it, which also ends its cool-down. Raises `StoreAway`."""
        state, _, _, accounts = _keys([channel])
        if enabled:
            await self._client.call("DEL", accounts)
            await self._client.call(
                "HDEL", state, "disabled", "until", "firm", "probe", "streak", "ok", "failed", "turn"
            )
        else:
            await self._client.call("HSET", state, "disabled", 1)
            await self._client.call("PERSIST", state)

    async def show(self, channels: Sequence[str]) -> list[ChannelSnapshot]:
        """Return a snapshot of each channel, in the given order. Raises `StoreAway`."""
        clock = self._client.submit("TIME")
        states = [self._client.submit("HGETALL", _keys([name])[0]) for name in channels]
        accounts = [self._client.submit("HVALS", _keys([name])[3]) for name in channels]
        seconds, micros = await clock
        now_ms = int(seconds) * 1000 + int(micros) // 1000
        return [
            _snapshot(name, await state, await failing, now_ms)
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
        index, probe, wait_ms = await self._client.run(_SCRIPT, keys, [operation, request_id, *numbers])
        return Admission(index - 1 if index else None, bool(probe), int(wait_ms))


def _snapshot(channel: str, raw: Mapping[bytes, bytes], accounts: Sequence[bytes], now_ms: int) -> ChannelSnapshot:
    state = {name.decode(): value.decode() for name, value in raw.items()}
    until = int(state.get("until", 0))
    condition = Condition.PROBING if until else Condition.HEALTHY
    if until > now_ms:
        condition = Condition.COOLING
    if "disabled" in state:
        condition = Condition.DISABLED
    in_flight = [value.split(" ") for name, value in state.items() if name.startswith("in:")]
    return ChannelSnapshot(
        channel,
        condition,
        max(0, until - now_ms),
        sum(int(count) for count, expiry in in_flight if int(expiry) >= now_ms),
        int(state["latency"]) if "latency" in state else None,
        state.get("error", ""),
        int(state["error_at"]) if "error_at" in state else None,
        sum(msgspec.json.decode(account)["until"] > now_ms for account in accounts),
        until > now_ms and state.get("firm") == "1",
    )


def _keys(channels: Sequence[str]) -> list[str]:
    """Return the keys, all in one hash slot of a cluster, since one request may try several channels at once."""
    return [f"gw:{{channels}}:{name}:{kind}" for name in channels for kind in ("state", "slots", "calls", "accounts")]
