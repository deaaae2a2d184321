"""What all workers and machines know together of the channels: who fails, who is called by how many, who is switched off.

1. All is judged by the store's clock, in one script; a worker tells and asks, and decides nothing for others.
2. A channel cools after too many failures, or at once where the upstream says so; each further time for longer, up to a
   limit. When the time is over one call goes through, and its outcome decides.
3. What a dead process holds comes back by itself: slots, probes and counts are leased.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Final, Literal

import msgspec

from gateway.store.client.client import Client, Script

_SCRIPT: Final = Script.load(Path(__file__).with_name("channels.lua"))
_encode: Final = msgspec.json.Encoder().encode


class Condition(StrEnum):
    """How a channel is. `PROBING`: it has cooled, and the next call shows whether it serves again."""

    HEALTHY = "healthy"
    COOLING = "cooling"
    PROBING = "probing"
    DISABLED = "disabled"


_CONDITIONS: Final = tuple(Condition)


class Cooling(msgspec.Struct, frozen=True):
    """When a channel cools: `fewest` failures that are at least half of all calls of `window_ms` to twice that, or that
    are all that one worker has to report.

    For `first_ms`, doubled each time that the probe fails too, or for what the upstream asks; never above `longest_ms`.
    """

    first_ms: int = 1_000
    longest_ms: int = 120_000
    window_ms: int = 10_000
    fewest: int = 3


class Report(msgspec.Struct):
    """What one worker saw of one channel since it last said. `cool_ms`: the upstream asks for it; -1: it does not."""

    ok: int = 0
    failed: int = 0
    took_ms: float = 0
    """From call to first event, of all that were `ok` together."""
    cool_ms: int = -1
    error: str = ""
    probe: Literal["", "ok", "failed", "void"] = ""
    left: list[str] = []
    """Requests whose slots are free."""
    in_flight: int = 0


class Ask(msgspec.Struct, frozen=True):
    """A channel that a request would like to call, and its limits; 0 for none. Leases in ms."""

    channel: str
    concurrent: int
    requests_per_minute: int
    lease_ms: int
    probe_lease_ms: int


class Admitted(msgspec.Struct, frozen=True):
    """Which of the asked (None: none of them), whether the call is its probe, and in how many ms to ask again."""

    index: int | None
    probe: bool
    wait_ms: int


class ChannelStatus(msgspec.Struct, frozen=True):
    """A channel's condition, and for how many ms it still cools."""

    condition: Condition
    cool_ms: int


class Shown(msgspec.Struct, frozen=True):
    """A channel as `gateway channels` shows it. `latency_ms`: from call to first event, lately; None before the first."""

    channel: str
    condition: Condition
    cool_ms: int
    in_flight: int
    latency_ms: int | None
    last_error: str
    last_error_at_ms: int | None


class Channels:
    """The channels of one store, by their names in the file."""

    def __init__(self, client: Client, cooling: Cooling = Cooling()) -> None:  # noqa: B008 - frozen
        self._client = client
        self.cooling = cooling

    async def admit(self, request_id: str, asked: Sequence[Ask]) -> Admitted:
        """Take a place at the first of `asked` that has one, all in one round trip. Raises `StoreAway`.

        Whether a place was taken is then unknown; a report that the request left is right in either case.
        """
        return await self._ask("admit", request_id, asked)

    async def look(self, asked: Sequence[Ask]) -> Admitted:
        """What `admit` would answer now. Takes no place. Raises `StoreAway`."""
        return await self._ask("look", "", asked)

    async def sync(self, worker: str, reports: Mapping[str, Report]) -> dict[str, ChannelStatus]:
        """Tell what a worker saw, and learn how the channels are. Raises `StoreAway`; nothing was told then, or all."""
        rules = self.cooling
        text = _encode(list(reports.values()))
        arguments: list[str | bytes | int] = [
            "sync",
            worker,
            text,
            rules.first_ms,
            rules.longest_ms,
            rules.window_ms,
            rules.fewest,
        ]
        seen = await self._client.run(_SCRIPT, _keys(list(reports)), arguments)
        return {
            name: ChannelStatus(_CONDITIONS[condition], int(cool_ms))
            for name, (condition, cool_ms) in zip(reports, seen, strict=True)
        }

    async def set_enabled(self, channel: str, enabled: bool) -> None:
        """Switch a channel off for all gateways, or on again, which also ends its cool-down. Raises `StoreAway`."""
        state = _keys([channel])[0]
        if enabled:
            await self._client.call("HDEL", state, "disabled", "until", "probe", "streak", "ok", "failed", "turn")
        else:
            await self._client.call("HSET", state, "disabled", 1)

    async def show(self, channels: Sequence[str]) -> list[Shown]:
        """How the channels are, in the given order. Raises `StoreAway`."""
        clock = self._client.submit("TIME")
        states = [self._client.submit("HGETALL", _keys([name])[0]) for name in channels]
        seconds, micros = await clock
        now_ms = int(seconds) * 1000 + int(micros) // 1000
        return [_shown(name, await state, now_ms) for name, state in zip(channels, states, strict=True)]

    async def _ask(self, what: str, request_id: str, asked: Sequence[Ask]) -> Admitted:
        numbers = [
            number
            for ask in asked
            for number in (ask.concurrent, ask.requests_per_minute, ask.lease_ms, ask.probe_lease_ms)
        ]
        keys = _keys([ask.channel for ask in asked])
        index, probe, wait_ms = await self._client.run(_SCRIPT, keys, [what, request_id, *numbers])
        return Admitted(index - 1 if index else None, bool(probe), int(wait_ms))


def _shown(channel: str, raw: Mapping[bytes, bytes], now_ms: int) -> Shown:
    state = {name.decode(): value.decode() for name, value in raw.items()}
    until = int(state.get("until", 0))
    condition = Condition.PROBING if until else Condition.HEALTHY
    if until > now_ms:
        condition = Condition.COOLING
    if "disabled" in state:
        condition = Condition.DISABLED
    told = [value.split(" ") for name, value in state.items() if name.startswith("in:")]
    return Shown(
        channel,
        condition,
        max(0, until - now_ms),
        sum(int(count) for count, over in told if int(over) >= now_ms),
        int(state["latency"]) if "latency" in state else None,
        state.get("error", ""),
        int(state["error_at"]) if "error_at" in state else None,
    )


def _keys(channels: Sequence[str]) -> list[str]:
    """All in one slot of a cluster, since one request may ask for several channels at once."""
    return [f"gw:{{channels}}:{name}:{kind}" for name in channels for kind in ("state", "slots", "calls")]
