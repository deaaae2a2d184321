"""What workers report of channels to the store, and what the store and its commands say of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final, Literal

import msgspec

from gateway.store.credential_states import CredentialStatus, statuses


class Condition(StrEnum):
    """The condition of a channel. `PROBING`: its cool-down is over, and the next call shows whether it works again."""

    HEALTHY = "healthy"
    COOLING = "cooling"
    PROBING = "probing"
    DISABLED = "disabled"


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
    credentials: dict[str, str] = {}
    """By the fingerprint of the credential: why it was refused, or empty where it works again."""


class ChannelLimits(msgspec.Struct, frozen=True):
    """A channel that a request may call, and its limits; 0 for none. Leases in ms."""

    channel: str
    concurrent: int
    requests_per_minute: int
    lease_ms: int
    probe_lease_ms: int


class Refusal(msgspec.Struct, frozen=True):
    """Why a channel is not called: `disabled`, `cooling`, `probing` or `full`; for how many ms, and its last error."""

    reason: str
    wait_ms: int
    error: str


class Admission(msgspec.Struct, frozen=True):
    """The index of the admitted channel (None: none of them), whether the call is its probe, and in how many ms to retry.

    `wait_ms` of an admission is the rest of a cool-down during which the channel is called for want of another. `refusals`: where
    none is admitted, why not, one for each channel.
    """

    index: int | None
    probe: bool
    wait_ms: int
    refusals: Sequence[Refusal] = ()


class AccountStatus(msgspec.Struct, frozen=True):
    """The rest of an account's cool-down at a channel in ms, and whether it is firm."""

    cool_ms: int = 0
    firm: bool = False


class ChannelStatus(msgspec.Struct, frozen=True):
    """A channel's condition, the rest of its cool-down in ms, whether it is firm, and the accounts whose calls fail there.

    `error`: the last one, empty for a channel that works for all. `credentials_off`: an operator has switched off all of them.
    """

    condition: Condition
    cool_ms: int
    firm: bool = False
    accounts: dict[str, AccountStatus] = {}
    error: str = ""
    credentials_off: bool = False


class Disabling(msgspec.Struct, frozen=True):
    """When an operator disabled a channel, who that was, and why, as far as it was said."""

    at_ms: int
    by: str = ""
    reason: str = ""


NOTE: Final = "disabled_note"
"""The field of a channel's state that has its `Disabling`."""


class ChannelSnapshot(msgspec.Struct, frozen=True):
    """A channel as `gateway channels` shows it.

    `latency_ms`: a moving average of the time from call to first event; None before the first call. `failing_accounts`: how
    many accounts cool down there by themselves, while the channel serves others. `firm`: it is not called while it cools, even
    where no other channel can serve. `credentials`: those that are set aside, by their fingerprints. `disabling`: None where the
    channel is not disabled, or was by an earlier version.
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
    credentials: dict[str, CredentialStatus] = {}
    disabling: Disabling | None = None


def snapshot_of(channel: str, raw: Mapping[bytes, bytes], accounts: Sequence[bytes], now_ms: int) -> ChannelSnapshot:
    """Return a channel from what the store has of it: its state, and its accounts whose calls fail."""
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
        statuses(state, now_ms),
        msgspec.json.decode(state[NOTE], type=Disabling) if NOTE in state else None,
    )
