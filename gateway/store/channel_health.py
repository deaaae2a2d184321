"""The circuit breaker of one worker: which channels may be called now.

A call of a healthy channel without limits needs no round trip to the store. The outcomes of calls are reported in the
background: at once if they may matter to other workers, else twice a second. The same round trip reads the channels' status.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final
from uuid import uuid4

import msgspec
import structlog

from gateway.config.channel import Channel
from gateway.errors import GatewayError, Refused, StoreAway
from gateway.facts import Candidate, CircuitBreaker
from gateway.store.channels import ChannelLimits, ChannelReport, Channels, ChannelStatus, Condition

SYNC_INTERVAL_S: Final = 0.5
BATCH_S: Final = 0.005
"""How long an urgent report waits for others, to be sent with them."""
LEASE_MARGIN_S: Final = 60
MAX_WAIT_S: Final = 59.0

log = structlog.get_logger("gateway.store.channel_health")


class LocalChannel(msgspec.Struct):
    """What this worker knows of one channel."""

    limits: ChannelLimits
    status: ChannelStatus = ChannelStatus(Condition.HEALTHY, 0)
    status_at: float = 0.0
    report: ChannelReport = msgspec.field(default_factory=ChannelReport)
    probe: str = ""
    """The request of this worker that probes it, or empty."""

    @property
    def wait_s(self) -> float:
        """Return for how long it must not be called; 0 if it may be called, as far as this worker knows."""
        if self.status.condition is Condition.DISABLED:
            return MAX_WAIT_S
        return max(0.0, self.status_at + self.status.cool_ms / 1000 - time.monotonic())

    @property
    def needs_store(self) -> bool:
        """Return whether only the store can decide if it may be called."""
        limited = self.limits.concurrent or self.limits.requests_per_minute
        return bool(limited) or self.status.condition is not Condition.HEALTHY


class ChannelHealth(CircuitBreaker):
    """Admits calls to channels that work and have a free slot; `start` and `stop` belong to its owner."""

    def __init__(self, store: Channels, channels: Mapping[str, Channel]) -> None:
        self._store = store
        self._worker = uuid4().hex[:12]
        self._channels = {name: LocalChannel(_limits_of(name, channel)) for name, channel in channels.items()}
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._stopping = False

    async def start(self) -> None:
        """Read the channels' status, if the store answers, and begin to synchronize in the background."""
        with suppress(GatewayError):
            await self.sync()
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Send the last reports, if the store answers."""
        self._stopping = True
        self._changed.set()
        if self._task is not None:
            await self._task
        with suppress(GatewayError):
            await self.sync()

    async def admit(self, candidates: Sequence[Candidate], request_id: str) -> Candidate:
        """Return the first candidate that may be called, with at most one round trip. Raises `Refused` and `StoreAway`."""
        open_candidates: list[Candidate] = []
        for candidate in candidates:
            local = self._channels[candidate.name]
            if local.wait_s > 0:
                continue
            open_candidates.append(candidate)
            if not local.needs_store:
                break
        if open_candidates and not self._channels[open_candidates[0].name].needs_store:
            return self._count_in(open_candidates[0])
        waits = [self._channels[candidate.name].wait_s for candidate in candidates]
        wait_s = min((wait for wait in waits if wait > 0), default=MAX_WAIT_S)
        if open_candidates:
            limits = [self._channels[candidate.name].limits for candidate in open_candidates]
            try:
                admission = await self._store.admit(request_id, limits)
            except StoreAway:
                for candidate in open_candidates:
                    self._channels[candidate.name].report.left.append(request_id)
                raise
            if admission.index is not None:
                chosen = open_candidates[admission.index]
                if admission.probe:
                    self._channels[chosen.name].probe = request_id
                return self._count_in(chosen)
            wait_s = min(wait_s, admission.wait_ms / 1000)
        raise Refused(
            503,
            "model_unavailable",
            "No channel can serve this model at the moment. Retry shortly or choose another model.",
            type="upstream_error",
            retry_after_s=wait_s,
        )

    async def why_not(self, candidate: Candidate) -> str:
        """Return why the candidate may not be called, by what the store knows; empty if it may."""
        limits = self._channels[candidate.name].limits
        (snapshot,) = await self._store.show([candidate.name])
        if (await self._store.look([limits])).index is not None:
            return ""
        match snapshot.condition:
            case Condition.DISABLED:
                return "switched off by an operator"
            case Condition.COOLING:
                return f"cooling for {-(-snapshot.cool_ms // 1000)} s after {snapshot.last_error or 'failures'}"
            case Condition.PROBING:
                return f"has cooled after {snapshot.last_error or 'failures'}, and another request tries it now"
            case _:
                return "full: it has as many requests, at once or in this minute, as its limits allow"

    def answered(self, candidate: Candidate, request_id: str, after_s: float) -> None:
        local = self._channels[candidate.name]
        local.report.ok += 1
        local.report.took_ms += after_s * 1000
        self._record_probe(local, request_id, ok=True)

    def failed(self, candidate: Candidate, request_id: str, code: str, cool_s: float | None) -> None:
        local = self._channels[candidate.name]
        local.report.failed += 1
        local.report.error = code
        if cool_s is not None:
            local.report.cool_ms = max(local.report.cool_ms, round(cool_s * 1000))
        self._record_probe(local, request_id, ok=False)
        self._changed.set()

    def left(self, candidate: Candidate, request_id: str) -> None:
        local = self._channels[candidate.name]
        local.report.in_flight -= 1
        if local.probe == request_id:
            local.probe, local.report.probe = "", "void"
            self._changed.set()
        if local.limits.concurrent:
            local.report.left.append(request_id)
            self._changed.set()

    async def sync(self) -> None:
        """Send the reports and read the status once. Raises `StoreAway`; the reports are then kept for the next time."""
        reports = {name: local.report for name, local in self._channels.items()}
        if not reports:
            return
        for local in self._channels.values():
            local.report = ChannelReport(in_flight=local.report.in_flight)
        try:
            statuses = await self._store.sync(self._worker, reports)
        except StoreAway:
            for name, report in reports.items():
                self._channels[name].report = _merge(report, self._channels[name].report)
            raise
        now = time.monotonic()
        for name, status in statuses.items():
            self._channels[name].status, self._channels[name].status_at = status, now

    def _count_in(self, candidate: Candidate) -> Candidate:
        self._channels[candidate.name].report.in_flight += 1
        return candidate

    def _record_probe(self, local: LocalChannel, request_id: str, *, ok: bool) -> None:
        if local.probe == request_id:
            local.probe, local.report.probe = "", "ok" if ok else "failed"
            self._changed.set()

    async def _run(self) -> None:
        while not self._stopping:
            with suppress(TimeoutError):
                async with asyncio.timeout(SYNC_INTERVAL_S):
                    await self._changed.wait()
                    await asyncio.sleep(BATCH_S)
            self._changed.clear()
            try:
                await self.sync()
            except GatewayError as error:
                log.warning("channels_unknown", reason=str(error))
                await asyncio.sleep(SYNC_INTERVAL_S)


def _limits_of(name: str, channel: Channel) -> ChannelLimits:
    timers = channel.timers
    return ChannelLimits(
        name,
        channel.concurrent or 0,
        channel.requests_per_minute or 0,
        round((timers.total + LEASE_MARGIN_S) * 1000),
        round((timers.connect + timers.first_byte) * 1000),
    )


def _merge(earlier: ChannelReport, later: ChannelReport) -> ChannelReport:
    return ChannelReport(
        ok=earlier.ok + later.ok,
        failed=earlier.failed + later.failed,
        took_ms=earlier.took_ms + later.took_ms,
        cool_ms=max(earlier.cool_ms, later.cool_ms),
        error=later.error or earlier.error,
        probe=later.probe or earlier.probe,
        left=earlier.left + later.left,
        in_flight=later.in_flight,
    )
