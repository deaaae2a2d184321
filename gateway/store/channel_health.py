"""What one worker knows of the channels, and tells the others.

A call of a channel that is healthy and has no limits asks nobody. What became of calls is told in the background, at once
where it may change something for others and twice a second otherwise; how the channels are is learnt in the same round trip.
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
from gateway.store.channels import Ask, Channels, ChannelStatus, Condition, Report

EVERY_S: Final = 0.5
TOGETHER_S: Final = 0.005
"""How long what is to be told at once waits for more of it."""
LEASE_MARGIN_S: Final = 60
LONGEST_WAIT_S: Final = 59.0

log = structlog.get_logger("gateway.health")


class Local(msgspec.Struct):
    """One channel as this worker knows it."""

    ask: Ask
    known: ChannelStatus = ChannelStatus(Condition.HEALTHY, 0)
    known_at: float = 0.0
    report: Report = msgspec.field(default_factory=Report)
    probe: str = ""
    """The request that probes it from here."""

    @property
    def wait_s(self) -> float:
        """For how long it is not to be called; 0 where it may be, as far as is known here."""
        if self.known.condition is Condition.DISABLED:
            return LONGEST_WAIT_S
        return max(0.0, self.known_at + self.known.cool_ms / 1000 - time.monotonic())

    @property
    def must_ask(self) -> bool:
        """Whether only the store can say if there is a place."""
        limited = self.ask.concurrent or self.ask.requests_per_minute
        return bool(limited) or self.known.condition is not Condition.HEALTHY


class ChannelHealth(CircuitBreaker):
    """Lets calls through to channels that serve and have room; owned by whoever starts and stops it."""

    def __init__(self, store: Channels, channels: Mapping[str, Channel]) -> None:
        self._store = store
        self._worker = uuid4().hex[:12]
        self._channels = {name: Local(_ask(name, channel)) for name, channel in channels.items()}
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._stopping = False

    async def start(self) -> None:
        """Learn how the channels are, if the store is there, and keep learning."""
        with suppress(GatewayError):
            await self.sync()
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Tell the last of it, if the store is there."""
        self._stopping = True
        self._changed.set()
        if self._task is not None:
            await self._task
        with suppress(GatewayError):
            await self.sync()

    async def admit(self, candidates: Sequence[Candidate], request_id: str) -> Candidate:
        """The first that may be called; at most one round trip. Raises `Refused` and `StoreAway`."""
        asked: list[Candidate] = []
        for candidate in candidates:
            local = self._channels[candidate.name]
            if local.wait_s > 0:
                continue
            asked.append(candidate)
            if not local.must_ask:
                break
        if asked and not self._channels[asked[0].name].must_ask:
            return self._enter(asked[0])
        waits = [self._channels[candidate.name].wait_s for candidate in candidates]
        wait_s = min((wait for wait in waits if wait > 0), default=LONGEST_WAIT_S)
        if asked:
            try:
                answer = await self._store.admit(request_id, [self._channels[each.name].ask for each in asked])
            except StoreAway:
                for each in asked:
                    self._channels[each.name].report.left.append(request_id)
                raise
            if answer.index is not None:
                chosen = asked[answer.index]
                if answer.probe:
                    self._channels[chosen.name].probe = request_id
                return self._enter(chosen)
            wait_s = min(wait_s, answer.wait_ms / 1000)
        raise Refused(
            503,
            "model_unavailable",
            "No channel can serve this model at the moment. Retry shortly or choose another model.",
            type="upstream_error",
            retry_after_s=wait_s,
        )

    async def why_not(self, candidate: Candidate) -> str:
        """What the store knows of it."""
        ask = self._channels[candidate.name].ask
        (shown,) = await self._store.show([candidate.name])
        if (await self._store.look([ask])).index is not None:
            return ""
        match shown.condition:
            case Condition.DISABLED:
                return "switched off by an operator"
            case Condition.COOLING:
                return f"cooling for {-(-shown.cool_ms // 1000)} s after {shown.last_error or 'failures'}"
            case Condition.PROBING:
                return f"has cooled after {shown.last_error or 'failures'}, and another request tries it now"
            case _:
                return "full: it has as many requests, at once or in this minute, as its limits allow"

    def answered(self, candidate: Candidate, request_id: str, after_s: float) -> None:
        local = self._channels[candidate.name]
        local.report.ok += 1
        local.report.took_ms += after_s * 1000
        self._probed(local, request_id, ok=True)

    def failed(self, candidate: Candidate, request_id: str, code: str, cool_s: float | None) -> None:
        local = self._channels[candidate.name]
        local.report.failed += 1
        local.report.error = code
        if cool_s is not None:
            local.report.cool_ms = max(local.report.cool_ms, round(cool_s * 1000))
        self._probed(local, request_id, ok=False)
        self._changed.set()

    def left(self, candidate: Candidate, request_id: str) -> None:
        local = self._channels[candidate.name]
        local.report.in_flight -= 1
        if local.probe == request_id:
            local.probe, local.report.probe = "", "void"
            self._changed.set()
        if local.ask.concurrent:
            local.report.left.append(request_id)
            self._changed.set()

    async def sync(self) -> None:
        """Tell and learn, once. Raises `StoreAway`; what was to be told is kept for the next time."""
        told = {name: local.report for name, local in self._channels.items()}
        if not told:
            return
        for local in self._channels.values():
            local.report = Report(in_flight=local.report.in_flight)
        try:
            known = await self._store.sync(self._worker, told)
        except StoreAway:
            for name, report in told.items():
                self._channels[name].report = _together(report, self._channels[name].report)
            raise
        now = time.monotonic()
        for name, each in known.items():
            self._channels[name].known, self._channels[name].known_at = each, now

    def _enter(self, candidate: Candidate) -> Candidate:
        self._channels[candidate.name].report.in_flight += 1
        return candidate

    def _probed(self, local: Local, request_id: str, *, ok: bool) -> None:
        if local.probe == request_id:
            local.probe, local.report.probe = "", "ok" if ok else "failed"
            self._changed.set()

    async def _run(self) -> None:
        while not self._stopping:
            with suppress(TimeoutError):
                async with asyncio.timeout(EVERY_S):
                    await self._changed.wait()
                    await asyncio.sleep(TOGETHER_S)
            self._changed.clear()
            try:
                await self.sync()
            except GatewayError as error:
                log.warning("channels_unknown", reason=str(error))
                await asyncio.sleep(EVERY_S)


def _ask(name: str, channel: Channel) -> Ask:
    timers = channel.timers
    return Ask(
        name,
        channel.concurrent or 0,
        channel.requests_per_minute or 0,
        round((timers.total + LEASE_MARGIN_S) * 1000),
        round((timers.connect + timers.first_byte) * 1000),
    )


def _together(earlier: Report, later: Report) -> Report:
    return Report(
        ok=earlier.ok + later.ok,
        failed=earlier.failed + later.failed,
        took_ms=earlier.took_ms + later.took_ms,
        cool_ms=max(earlier.cool_ms, later.cool_ms),
        error=later.error or earlier.error,
        probe=later.probe or earlier.probe,
        left=earlier.left + later.left,
        in_flight=later.in_flight,
    )
