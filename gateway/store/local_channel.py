"""What one worker knows of a channel: its status as the store told it, and what is to be reported."""

from __future__ import annotations

import time
from typing import Final, Literal

import msgspec

from gateway.config.channel import Channel
from gateway.errors import MAX_RETRY_AFTER_S
from gateway.store.channels import AccountReport, AccountStatus, ChannelLimits, ChannelReport, ChannelStatus, Condition

LEASE_MARGIN_S: Final = 60


class LocalChannel(msgspec.Struct):
    """What this worker knows of one channel."""

    limits: ChannelLimits
    status: ChannelStatus = ChannelStatus(Condition.HEALTHY, 0)
    status_at: float = 0.0
    report: ChannelReport = msgspec.field(default_factory=ChannelReport)
    probe: str = ""
    """The request of this worker that probes it, or empty."""
    failing: set[str] = set()
    """Accounts whose calls failed since the status was read."""

    def wait_s(self, account: str) -> tuple[float, bool]:
        """Return how long the account should not call it, as far as this worker knows, and whether that is firm."""
        status = self.status
        if status.condition is Condition.DISABLED:
            return MAX_RETRY_AFTER_S, True
        if status.condition is Condition.HEALTHY and not status.accounts:
            return 0.0, False
        passed_s = time.monotonic() - self.status_at
        own = status.accounts.get(account) or AccountStatus()
        of_all, of_account = status.cool_ms / 1000 - passed_s, own.cool_ms / 1000 - passed_s
        return max(0.0, of_all, of_account), (of_all > 0 and status.firm) or (of_account > 0 and own.firm)

    @property
    def needs_store(self) -> bool:
        """Return whether only the store can decide if it may be called."""
        limited = self.limits.concurrent or self.limits.requests_per_minute
        return bool(limited) or self.status.condition is not Condition.HEALTHY

    def answered(self, request_id: str, after_s: float) -> bool:
        """Count an answer, which began `after_s` after the call. Return whether other workers should know at once."""
        self.report.ok += 1
        self.report.took_ms += after_s * 1000
        return self._end_probe(request_id, "ok")

    def succeeded(self, account: str) -> bool:
        """Note that a call of the account succeeded. Return whether it is one whose calls failed before."""
        if account not in self.failing and account not in self.status.accounts:
            return False
        self.failing.discard(account)
        self.report.accounts[account] = AccountReport(ok=True)
        return True

    def failed(self, request_id: str, code: str, cool_s: float | None, account: str) -> None:
        """Count a failure, against the account if there is one."""
        cool_ms = -1 if cool_s is None else round(cool_s * 1000)
        self.report.error = code
        if not account:
            self.report.failed += 1
            self.report.cool_ms = max(self.report.cool_ms, cool_ms)
            self._end_probe(request_id, "failed")
            return
        self.failing.add(account)
        report = self.report.accounts.setdefault(account, AccountReport())
        report.failed, report.ok = report.failed + 1, False
        report.cool_ms = max(report.cool_ms, cool_ms)
        self._end_probe(request_id, "void")  # the store compares the failures of several accounts

    def _end_probe(self, request_id: str, outcome: Literal["ok", "failed", "void"]) -> bool:
        if self.probe != request_id:
            return False
        self.probe, self.report.probe = "", outcome
        return True


def limits_of(name: str, channel: Channel) -> ChannelLimits:
    """Return the limits of a channel of the configuration, with the leases that follow from its timeouts."""
    timers = channel.timers
    return ChannelLimits(
        name,
        channel.concurrent or 0,
        channel.requests_per_minute or 0,
        round((timers.total + LEASE_MARGIN_S) * 1000),
        round((timers.connect + timers.first_byte) * 1000),
    )


def merged(earlier: ChannelReport, later: ChannelReport) -> ChannelReport:
    """Return one report in place of two, of which the earlier was not sent."""
    return ChannelReport(
        ok=earlier.ok + later.ok,
        failed=earlier.failed + later.failed,
        took_ms=earlier.took_ms + later.took_ms,
        cool_ms=max(earlier.cool_ms, later.cool_ms),
        error=later.error or earlier.error,
        probe=later.probe or earlier.probe,
        left=earlier.left + later.left,
        in_flight=later.in_flight,
        accounts=_merge_accounts(earlier.accounts, later.accounts),
        credentials=earlier.credentials | later.credentials,
    )


def _merge_accounts(earlier: dict[str, AccountReport], later: dict[str, AccountReport]) -> dict[str, AccountReport]:
    """Return both, with what is later deciding where a call succeeded before or after others failed."""
    merged = earlier | later
    for account in earlier.keys() & later.keys():
        before, after = earlier[account], later[account]
        if not (before.ok or after.ok):
            merged[account] = AccountReport(before.failed + after.failed, max(before.cool_ms, after.cool_ms))
    return merged
