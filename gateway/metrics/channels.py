"""What is counted of each channel: its calls, which of them failed, refused credentials, and its condition.

Requests are counted under the channel that served them. That a channel fails while another one serves is seen only here, so each
channel of the configuration has its series from the start. A channel that the configuration no longer has is not counted.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from gateway.exchange import Exchange, Outcome
from gateway.metrics.shared import Numbers, SharedNumbers
from gateway.store.channels import ChannelStatus, Condition

CONDITIONS: Final = ("healthy", "cooling", "down", "disabled")
"""The states of `channel_condition`; its number is the position from 1 on, 0 while it is not known."""
HEALTHY, COOLING, DOWN, DISABLED = map(float, range(1, len(CONDITIONS) + 1))

REFUSED: Final = "upstream_refused"
FAILURES: Final = frozenset(
    {
        "upstream_auth_failed",
        "upstream_error",
        "upstream_rate_limited",
        "upstream_timeout",
        "upstream_truncated",
        "upstream_unreachable",
    }
)
"""Codes of failures that are the upstream's. Any other one is the upstream's own, for what a request contains: `REFUSED`."""
_UNSEEN: Final[Numbers] = memoryview(bytearray(8)).cast("d")
_IN_STREAM: Final = (Outcome.UPSTREAM_TRUNCATED, Outcome.UPSTREAM_STALLED, Outcome.UPSTREAM_ERROR_IN_STREAM)


class ChannelMetrics:
    """What one process counts of the channels that `use` names."""

    def __init__(self, shared: SharedNumbers) -> None:
        self._shared = shared
        self._attempts: dict[str, Numbers] = {}
        self._conditions: dict[str, Numbers] = {}

    def forget(self, channels: Collection[str]) -> None:
        """Let all channels but these have no condition any more. To be called while their series are still kept."""
        for key, _ in self._shared:
            if key[0] == "channel_condition" and key[1] not in channels:
                self._shared.at(key)[0] = 0.0

    def use(self, channels: Collection[str]) -> None:
        """Count under these names from now on."""
        self._attempts = {name: self._shared.at(("attempts", name)) for name in channels}
        self._conditions = {name: self._shared.at(("channel_condition", name)) for name in channels}
        for name in channels:
            self._shared.at(("credentials_refused", name))

    def attempts(self, channel: str) -> Numbers:
        """Return where the calls of a channel are counted; those of no channel are not exported."""
        return self._attempts.get(channel, _UNSEEN)

    def failed(self, exchange: Exchange) -> None:
        """Count what failed of the calls of a request, and all calls but the last one."""
        for attempt in exchange.attempts[:-1]:
            self.attempts(attempt.channel)[0] += 1.0
        for attempt in exchange.attempts:
            if attempt.error:
                self._failed(attempt.channel, attempt.error)
        if exchange.outcome in _IN_STREAM:
            self._failed(exchange.channel, exchange.error.code if exchange.error is not None else "upstream_error")

    def credential_refused(self, channel: str) -> None:
        """Count a call whose credential the upstream refused."""
        if channel in self._attempts:
            self._shared.at(("credentials_refused", channel))[0] += 1.0

    def states(self, statuses: Mapping[str, ChannelStatus]) -> None:
        """Set the condition of the channels."""
        for name, status in statuses.items():
            if (numbers := self._conditions.get(name)) is not None:
                numbers[0] = _state(status)

    def _failed(self, channel: str, code: str) -> None:
        if channel in self._attempts:
            self._shared.at(("attempt_failures", channel, code if code in FAILURES else REFUSED))[0] += 1.0


def _state(status: ChannelStatus) -> float:
    if status.condition is Condition.HEALTHY:
        return HEALTHY
    if status.condition is Condition.DISABLED:
        return DISABLED
    return DOWN if status.firm else COOLING
