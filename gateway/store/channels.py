"""The state of channels that all workers and machines share: failures, cool-downs, calls in flight, credentials, and switches.

1. One script decides everything, by the store's clock. A worker reports and asks; it decides nothing for other workers.
2. A channel cools down after too many failures, or at once if the upstream says so; each further time for longer, up to a
   maximum. When the cool-down is over, one call is let through as a probe, and its outcome decides.
3. A failure that a request can cause counts against its account first. An account whose calls keep failing cools down by
   itself. The channel cools down for all only when the calls of two accounts fail. Accounts are stored as digests.
4. A cool-down is firm after repeated failures. One that is not firm only makes other channels preferred.
5. What a dead process held expires: slots, probes and counts of calls in flight are leased.
6. The state of a channel that no gateway has expires after a week, except that it or a credential of it is switched off.

Credentials that are set aside are part of a channel's state, known without a round trip for a request (`CredentialStates`):

7. A worker notes what an upstream refused, and sets it aside at once. The next synchronization of its channels, twice a second,
   tells the store, and learns what other workers and the operator have set aside.
8. A refused credential is set aside for ten minutes by the store's clock. One that is used before that, since all are set
   aside, and that the upstream accepts, is in use again. One that is spent is not used until an operator lets it be tried, and one
   that an operator switched off not until it is switched on.
9. Credentials are stored as fingerprints, so a list that is edited gives no key the state of another. 48 bits of a hash identify a
   key that a provider made; they do not lead back to it. The pepper has no part in them: its change must not switch a key on.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Final, Literal

import msgspec

from gateway.base.ids import ms_of, utc
from gateway.base.text import counted
from gateway.store.client.client import Client, Script

_SCRIPT: Final = Script.load(Path(__file__).with_name("channels.lua"))
_encode: Final = msgspec.json.Encoder().encode

NOTE: Final = "disabled_note"
"""The field of a channel's state that has its `Disabling`."""

_OF_COOL_DOWN: Final = ("until", "since", "firm", "probe", "streak", "ok", "failed", "run", "turn", "starting")
"""Fields of a channel's state."""

SUSPENDED_S: Final = 600.0
"""How long a refused credential is not used, as in `channels.lua`. Its budget may be refilled, or its block be over."""
OFF: Final = float("inf")
SPENT: Final = "spent: "
"""The beginning of why a credential is set aside that has nothing left to spend, as in `channels.lua`."""

OnRefused = Callable[[str, int, int, bool], None]
"""Is called with the channel, the credential's index, how many credentials the channel has, and whether this one is spent."""


class Condition(StrEnum):
    """The condition of a channel, in the words of every command, page, metric and document.

    `FAILING`: it serves, but not the accounts whose own calls keep failing there. `COOLING`: failed lately, until a call succeeds
    after its cool-down. `STARTING`: its upstream loads the model. `NO_CREDENTIAL`: each is refused or switched off.
    """

    HEALTHY = "healthy"
    FAILING = "failing"
    COOLING = "cooling"
    STARTING = "starting"
    DISABLED = "disabled"
    NO_CREDENTIAL = "no credential"


_CONDITIONS: Final = (Condition.HEALTHY, Condition.COOLING, Condition.STARTING, Condition.DISABLED)
CLOSED: Final = (Condition.DISABLED, Condition.NO_CREDENTIAL)
"""Conditions in which a channel is not called, whatever else there is."""

FIRST_EVENT_MS: Final = (
    *(50, 100, 150, 200, 300, 400, 500, 700),
    *(1000, 1500, 2000, 3000, 5000, 7000, 10_000, 15_000, 30_000, 60_000),
)
"""The ends of the ranges in which the times from call to first event are counted."""
_FIGURES: Final = 3 + len(FIRST_EVENT_MS) + 1
FIGURES_S: Final = 300
"""The seconds that the figures of a channel are of, beside the present minute."""


class CooldownRules(msgspec.Struct, frozen=True):
    """When a channel cools down, and for how long.

    It cools down after `min_failures` failures that are at least half of all calls in the last one to two `window_ms`, or that
    are all calls in one worker's report, or without a success between them where no request can cause them. The cool-down is
    `first_ms`, doubled each time that the probe fails, five times at most; or what the upstream asks for if that is longer, at most
    `max_ms`.
    """

    first_ms: int = 1_000
    max_ms: int = 120_000
    window_ms: int = 10_000
    min_failures: int = 3


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
        """Called with the status of the channels by the circuit breaker, whenever it has learned it."""

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
        rules = msgspec.structs.astuple(self.cooldown)
        arguments: list[str | bytes | int] = ["sync", worker, _encode(list(reports.values())), *rules]
        raw = await self._client.run(_SCRIPT, _keys(list(reports)), arguments)
        statuses = {
            name: ChannelStatus(
                _CONDITIONS[condition],
                int(cool_ms),
                bool(firm),
                {
                    each.decode(): AccountCoolDown(int(ms), bool(its), int(streak) > 0)
                    for each, ms, its, streak in accounts
                },
                error.decode(),
            )
            for name, (condition, cool_ms, firm, accounts, error, _) in zip(reports, raw, strict=True)
        }
        for name, (*_, aside) in zip(reports, raw, strict=True):
            self.credentials.learn(name, aside)
        return statuses

    async def set_enabled(self, channel: str, enabled: bool, *, by: str = "", reason: str = "") -> None:
        """Disable a channel for all gateways, or enable it, which also ends its cool-down. Raises `StoreAway`.

        `by` and `reason` are shown with the channel while it is disabled.
        """
        state, _, _, accounts = _keys([channel])
        if enabled:
            await self._client.call("DEL", accounts)
            await self._client.call("HDEL", state, "disabled", NOTE, *_OF_COOL_DOWN)
        else:
            note = Disabling(ms_of(await self._client.call("TIME")), by, reason)
            await self._client.call("HSET", state, "disabled", 1, NOTE, _encode(note))
            await self._client.call("PERSIST", state)

    async def switch_credential(self, channel: str, credential: str, state: Literal["on", "off", "try"]) -> None:
        """Switch a credential off for all gateways, or on, or let one that was refused be used again now. Raises `StoreAway`."""
        key, fingerprint = _keys([channel])[0], fingerprint_of(credential)
        if state == "off":
            await self._client.call("HSET", key, f"off:{fingerprint}", ms_of(await self._client.call("TIME")))
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
        now_ms = ms_of(await clock)
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
            for number in (*msgspec.structs.astuple(limits)[1:], int(limits.channel in insist))
        ]
        keys = _keys([limits.channel for limits in channels])
        index, probe, wait_ms, *why = await self._client.run(_SCRIPT, keys, [operation, request_id, *numbers])
        if index:
            return Admission(index - 1, bool(probe), int(wait_ms))
        refusals = [ChannelRefusal(reason.decode(), int(ms), error.decode()) for reason, ms, error in why[0]]
        return Admission(None, bool(probe), int(wait_ms), refusals)


def _keys(channels: Sequence[str]) -> list[str]:
    """Return the keys, all in one hash slot of a cluster, since one request may try several channels at once."""
    return [f"gw:{{channels}}:{name}:{kind}" for name in channels for kind in ("state", "slots", "calls", "accounts")]


class AccountReport(msgspec.Struct):
    """One worker's results of one account's calls of a channel. `ok`: a call succeeded. `cool_ms` is as in `ChannelReport`."""

    failed: int = 0
    cool_ms: int = -1
    ok: bool = False


class ChannelReport(msgspec.Struct):
    """One worker's results of one channel since its last report. `cool_ms`: the upstream asks for it; -1: it does not.

    `failed` and `cool_ms` are of failures that no request can cause; the others are in `accounts`. `broken`: failures of calls that
    were `ok` before. `limited`: failures because the upstream limits requests. `first`: first events by the ranges of
    `FIRST_EVENT_MS`. `starting`: the upstream says that it loads.
    """

    ok: int = 0
    failed: int = 0
    broken: int = 0
    limited: int = 0
    first: list[int] = msgspec.field(default_factory=lambda: [0] * (len(FIRST_EVENT_MS) + 1))
    starting: bool = False
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


class ChannelRefusal(msgspec.Struct, frozen=True):
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
    refusals: Sequence[ChannelRefusal] = ()


class AccountCoolDown(msgspec.Struct, frozen=True):
    """The rest of an account's cool-down at a channel in ms, whether it is firm, and whether none of its calls succeeded since."""

    cool_ms: int = 0
    firm: bool = False
    failing: bool = False


class ChannelStatus(msgspec.Struct, frozen=True):
    """A channel's condition, the rest of its cool-down in ms, whether it is firm, and the accounts whose calls fail there.

    `error`: the last one, empty for a channel that works for all. `refused`: every credential of it was refused; it is called all
    the same where no other channel serves.
    """

    condition: Condition
    cool_ms: int
    firm: bool = False
    accounts: dict[str, AccountCoolDown] = {}
    error: str = ""
    refused: bool = False

    @property
    def shown(self) -> Condition:
        """Its condition for people and metrics."""
        if self.refused and self.condition not in CLOSED:
            return Condition.NO_CREDENTIAL
        if self.condition is Condition.HEALTHY and any(account.failing for account in self.accounts.values()):
            return Condition.FAILING
        return self.condition


class Disabling(msgspec.Struct, frozen=True):
    """When an operator disabled a channel, who that was, and why, as far as it was said."""

    at_ms: int
    by: str = ""
    reason: str = ""


class MinuteFigures(msgspec.Struct, frozen=True):
    """The calls of a minute, and how many of them failed."""

    calls: int
    failed: int


class ChannelFigures(msgspec.Struct, frozen=True):
    """The calls of a channel that ended in the last five to six minutes, from all gateways of the store.

    `failed`: those without a whole answer, of which the upstream limited `rate_limited`. `success`: the share of the others; None
    without calls. `first_event_p95_ms`, `first_event_p90_ms`: within which time 95 and 90 % of the answers began; None without.
    `minutes`: each of these minutes, the oldest first; the last one is not over.
    """

    calls: int = 0
    failed: int = 0
    rate_limited: int = 0
    success: float | None = None
    first_event_p95_ms: int | None = None
    first_event_p90_ms: int | None = None
    minutes: list[MinuteFigures] = []


class ChannelSnapshot(msgspec.Struct, frozen=True):
    """A channel as `gateway channels` shows it.

    `failing_accounts`: how many accounts have cooled down there by themselves, and had no success since. `until_ms`: the end of its
    cool-down in ms since 1970, of one that is over, too. `firm`: it is not called while it cools, even
    where no other channel can serve. `credentials`: those that are set aside, by their fingerprints. `disabling`: None where the
    channel is not disabled.
    """

    channel: str
    condition: Condition
    cool_ms: int
    until_ms: int | None
    in_flight: int
    figures: ChannelFigures
    last_error: str
    last_error_at_ms: int | None
    failing_accounts: int = 0
    firm: bool = False
    credentials: dict[str, CredentialStatus] = {}
    disabling: Disabling | None = None

    @property
    def in_words(self) -> str:
        """The condition with what there is to say of it: for how many accounts, or until when."""
        return condition_in_words(self.condition, self.failing_accounts, self.until_ms if self.cool_ms else None)


def condition_in_words(condition: Condition, failing_accounts: int, until_ms: int | None) -> str:
    """Return a condition in words. `until_ms`: when a cool-down will be over; None where it is."""
    match condition:
        case Condition.FAILING:
            return f"failing for {counted(failing_accounts, 'account')}"
        case Condition.COOLING:
            return f"cooling until {'a call succeeds' if until_ms is None else utc(until_ms)[:19] + 'Z'}"
        case _:
            return str(condition)


def snapshot_of(channel: str, raw: Mapping[bytes, bytes], accounts: Sequence[bytes], now_ms: int) -> ChannelSnapshot:
    """Return a channel from what the store has of it: its state, and its accounts whose calls fail."""
    state = {name.decode(): value.decode() for name, value in raw.items()}
    until = int(state.get("until", 0))
    failing = sum(msgspec.json.decode(account)["streak"] > 0 for account in accounts)
    condition = Condition.FAILING if failing else Condition.HEALTHY
    if int(state.get("starting", 0)) > now_ms:
        condition = Condition.STARTING
    if until:
        condition = Condition.COOLING
    if "disabled" in state:
        condition = Condition.DISABLED
    minute = now_ms // 60_000
    in_flight = [value.split(" ") for name, value in state.items() if name.startswith("in:")]
    return ChannelSnapshot(
        channel,
        condition,
        max(0, until - now_ms),
        until or None,
        sum(int(count) for count, expiry in in_flight if int(expiry) >= now_ms),
        figures_of([state.get(f"min:{at}", "") for at in range(minute - FIGURES_S // 60, minute + 1)]),
        state.get("error", ""),
        int(state["error_at"]) if "error_at" in state else None,
        failing,
        until > now_ms and state.get("firm") == "1",
        statuses(state, now_ms),
        msgspec.json.decode(state[NOTE], type=Disabling) if NOTE in state else None,
    )


def figures_of(minutes: Sequence[str]) -> ChannelFigures:
    """Return the figures of some minutes together, each as the store has it; one without calls is empty."""
    each = [[*map(int, text.split())] or [0] * _FIGURES for text in minutes]
    calls, failed, limited, *first = map(sum, zip(*each, strict=True))
    success = (calls - failed) / calls if calls else None
    by_minute = [MinuteFigures(*numbers[:2]) for numbers in each]
    return ChannelFigures(calls, failed, limited, success, within_ms(first, 0.95), within_ms(first, 0.9), by_minute)


def within_ms(first: Sequence[int], part: float) -> int | None:
    """Return in how many ms this part of the first events came, as exactly as the ranges tell; None where there were none."""
    rest = part * sum(first)
    ends = (0, *FIRST_EVENT_MS, FIRST_EVENT_MS[-1])
    for index, number in enumerate(first):
        if number >= rest > 0:
            return round(ends[index] + (ends[index + 1] - ends[index]) * rest / number)
        rest -= number
    return None


class CredentialState(StrEnum):
    """The state of a credential. `REFUSED`: the upstream refused it lately. `SPENT`: it has nothing left to spend, and
    rests until an operator lets it be tried. `OFF`: an operator switched it off.
    """

    IN_USE = "in use"
    REFUSED = "refused"
    SPENT = "spent"
    OFF = "off"


class CredentialStatus(msgspec.Struct, frozen=True):
    """A credential as the store has it: since when it is set aside and until when, in ms since 1970, and why."""

    state: CredentialState = CredentialState.IN_USE
    since_ms: int | None = None
    until_ms: int | None = None
    reason: str = ""


def fingerprint_of(credential: str) -> str:
    """Return the short name under which the store keeps a credential's state."""
    return hashlib.blake2b(credential.encode(), digest_size=6, person=b"credential").hexdigest()


class CredentialStates:
    """The states of its channels' credentials, as one process knows them."""

    def __init__(self) -> None:
        self.aside: dict[str, dict[str, float]] = {}
        """By channel, the fingerprints of credentials that are set aside, and until when by `time.monotonic`."""
        self._reports: dict[str, dict[str, str]] = {}
        self.on_refused: OnRefused = lambda channel, number, of, spent: None
        """Called for each credential that an upstream refuses."""

    def until(self, channel: str, fingerprint: str) -> float:
        """Return until when a credential is set aside by the clock `time.monotonic`; `OFF` where it is switched off."""
        known = self.aside.get(channel)
        return known.get(fingerprint, 0.0) if known else 0.0

    def refused(self, channel: str, fingerprint: str, why: str, *, spent: bool = False) -> None:
        """Set a credential aside, and let the other workers know with the next report."""
        known = self.aside.setdefault(channel, {})
        until = OFF if spent else time.monotonic() + SUSPENDED_S
        known[fingerprint] = max(known.get(fingerprint, 0.0), until)
        self._reports.setdefault(channel, {})[fingerprint] = f"{SPENT if spent else ''}{why or 'refused'}"

    def worked(self, channel: str, fingerprint: str) -> None:
        """Note that an upstream accepted a credential: if it was refused before, it is in use again."""
        known = self.aside.get(channel)
        if known and 0.0 < known.get(fingerprint, 0.0) < OFF:
            del known[fingerprint]
            self._reports.setdefault(channel, {})[fingerprint] = ""

    def take_report(self, channel: str) -> dict[str, str]:
        """Return the notes since the last call: why a credential was refused; empty where it is in use again."""
        return self._reports.pop(channel, {})

    def learn(self, channel: str, aside: Iterable[tuple[bytes, int]]) -> None:
        """Take over what the store says: the credentials that are set aside, and for how many ms; -1: switched off."""
        now = time.monotonic()
        told = {name.decode(): OFF if ms < 0 else now + ms / 1000 for name, ms in aside}
        for fingerprint, why in self._reports.get(channel, {}).items():  # noted meanwhile, and not told yet
            if why:
                told.setdefault(fingerprint, OFF if why.startswith(SPENT) else now + SUSPENDED_S)
            elif told.get(fingerprint) != OFF:
                told.pop(fingerprint, None)
        if told:
            self.aside[channel] = told
        else:
            self.aside.pop(channel, None)

    def next_at(self, channel: str, credentials: Sequence[str]) -> float:
        """Return from when by `time.monotonic` a credential of a channel may be used: 0.0 for now, `OFF` where each is off."""
        known = self.aside.get(channel)
        if not known:
            return 0.0
        return min(known.get(fingerprint_of(credential), 0.0) for credential in credentials or ("",))


def statuses(state: Mapping[str, str], now_ms: int) -> dict[str, CredentialStatus]:
    """Return the credentials that are set aside, by fingerprint, from the fields of a channel's state in the store."""
    found: dict[str, CredentialStatus] = {}
    for name, value in state.items():
        kind, _, fingerprint = name.partition(":")
        if kind == "key" and fingerprint not in found:
            until_ms, since_ms, why = value.split(" ", 2)
            if why.startswith(SPENT):
                found[fingerprint] = CredentialStatus(
                    CredentialState.SPENT, int(since_ms), None, why.removeprefix(SPENT)
                )
            elif int(until_ms) > now_ms:
                found[fingerprint] = CredentialStatus(CredentialState.REFUSED, int(since_ms), int(until_ms), why)
        elif kind == "off":
            found[fingerprint] = CredentialStatus(CredentialState.OFF, int(value))
    return found
