"""The circuit breaker of one worker: which channels may be called now.

A call of a healthy channel without limits needs no round trip to the store. The outcomes of calls are reported in the
background: at once if they may matter to other workers, else twice a second. The same round trip reads the channels' status.

A request that no other channel admits calls a channel whose cool-down is not firm, or of which the account was told that it
may call it again now.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final
from uuid import uuid4

from gateway.config.channel import Channel
from gateway.errors import MAX_RETRY_AFTER_S, GatewayError, Refused, StoreAway
from gateway.facts import Candidate, CircuitBreaker
from gateway.log import Logger
from gateway.store.announced import MARGIN_S, Announcements
from gateway.store.channels import Admission, ChannelReport, Channels, Condition
from gateway.store.local_channel import LocalChannel, limits_of, merged

SYNC_INTERVAL_S: Final = 0.5
BATCH_S: Final = 0.005
"""How long an urgent report waits for others, to be sent with them."""

log = Logger("gateway.store.channel_health")


class ChannelHealth(CircuitBreaker):
    """Admits calls to channels that work and have a free slot; `start` and `stop` belong to its owner."""

    def __init__(self, store: Channels, channels: Mapping[str, Channel]) -> None:
        self._store = store
        self._worker = uuid4().hex[:12]
        self._channels = {name: LocalChannel(limits_of(name, channel)) for name, channel in channels.items()}
        self._announced = Announcements()
        self._changed = asyncio.Event()
        self._synced: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._stopping = False

    async def start(self) -> None:
        """Read the channels' status, if the store answers, and begin to synchronize in the background."""
        with suppress(GatewayError):
            await self.sync()
        loop = asyncio.get_running_loop()
        self._synced = loop.create_future()
        self._task = loop.create_task(self._run())

    async def stop(self) -> None:
        """Send the last reports, if the store answers."""
        self._stopping = True
        self._changed.set()
        if self._task is not None:
            await self._task
        with suppress(GatewayError):
            await self.sync()
        self._end_wait()

    async def admit(self, candidates: Sequence[Candidate], request_id: str) -> Candidate:
        """Return the first candidate that may be called, with at most one round trip. Raises `Refused` and `StoreAway`."""
        return await self.admit_for(candidates, request_id, "")

    async def admit_for(self, candidates: Sequence[Candidate], request_id: str, account: str) -> Candidate:
        """Return the first candidate that the account may call now. Raises the same as `admit`."""
        asked: list[Candidate] = []
        last_resorts: list[Candidate] = []
        for candidate in candidates:
            local = self._channels[candidate.name]
            wait_s, firm = local.wait_s(account)
            if wait_s == 0:
                asked.append(candidate)
                if not local.needs_store:
                    break
            if not firm or self._announced.over(account, candidate.name):
                last_resorts.append(candidate)
        if asked and not self._channels[asked[0].name].needs_store:
            return self._count_in(asked[0])
        insist = {
            other.name for other in last_resorts if other not in asked or self._announced.over(account, other.name)
        }
        asked += [other for other in last_resorts if other not in asked]
        wait_ms = 0
        if asked:
            admission = await self._ask_store(request_id, asked, insist)
            wait_ms = admission.wait_ms
            if admission.index is not None:
                chosen = asked[admission.index]
                if admission.probe:
                    self._channels[chosen.name].probe = request_id
                if wait_ms or self._channels[chosen.name].wait_s(account)[0]:
                    self._announced.use(account, chosen.name)
                return self._count_in(chosen)
        raise self._refusal(candidates, account, wait_ms / 1000)

    async def _ask_store(self, request_id: str, asked: Sequence[Candidate], insist: set[str]) -> Admission:
        try:
            return await self._store.admit(request_id, [self._channels[each.name].limits for each in asked], insist)
        except StoreAway:
            for candidate in asked:
                self._channels[candidate.name].report.left.append(request_id)
            raise

    def _refusal(self, candidates: Sequence[Candidate], account: str, store_wait_s: float) -> Refused:
        """Return why no candidate may be called. What it announces is remembered for the account."""
        disabled = [self._channels[candidate.name].status.condition is Condition.DISABLED for candidate in candidates]
        text = "No channel can serve this model at the moment. Retry later or choose another model."
        if all(disabled):
            text = "The operator has switched off every channel of this model. Choose another model."
        wait_s = self._announce(candidates, account)
        if store_wait_s and (not wait_s or store_wait_s < wait_s):
            wait_s = store_wait_s + MARGIN_S
            self._announced.add(account, candidates[0].name, wait_s)
        return Refused(
            503,
            "model_unavailable",
            text,
            type="upstream_error",
            retry_after_s=wait_s or MAX_RETRY_AFTER_S,
            should_retry=False if all(disabled) else None,
        )

    def _announce(self, candidates: Sequence[Candidate], account: str, asked_s: float = 0.0) -> float:
        """Return what to announce until the account may call a candidate, and remember it; 0 for nothing."""
        waits = []
        for candidate in candidates:
            local = self._channels[candidate.name]
            wait_s, firm = local.wait_s(account)
            if local.status.condition is not Condition.DISABLED:
                waits.append((wait_s + MARGIN_S if firm else 0.0, candidate.name))
        if not waits:
            return asked_s
        needed_s, channel = min(waits)
        wait_s = max(needed_s, asked_s)
        if wait_s:
            self._announced.add(account, channel, wait_s)
        return wait_s

    async def wait_s_for(self, candidates: Sequence[Candidate], account: str, asked_s: float) -> float:
        """Return what to announce to the account after its calls failed, once the store knows of them; 0 for nothing.

        Where the store does not answer, this is what the worker knew before.
        """
        self._changed.set()
        if self._synced is not None:
            await asyncio.wait([self._synced])
        return self._announce(candidates, account, asked_s)

    def why_not_for(self, candidate: Candidate, account: str, *, alone: bool = False) -> str:
        """Return why this account may not call the candidate, as far as this worker knows; empty if it may."""
        wait_s, firm = self._channels[candidate.name].wait_s(account)
        refused = firm or (wait_s and not alone)
        return f"cooling for {-(-wait_s // 1):.0f} s for this account, whose requests fail there" if refused else ""

    async def why_not_alone(self, candidate: Candidate) -> str:
        limits = self._channels[candidate.name].limits
        (snapshot,) = await self._store.show([candidate.name])
        if (await self._store.look_alone(limits, cools=snapshot.firm)).index is not None:
            return ""
        return await self.why_not(candidate)

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
        if self._channels[candidate.name].answered(request_id, after_s):
            self._changed.set()

    def succeeded_for(self, candidate: Candidate, account: str) -> None:
        """Note that a call of the account succeeded, which matters where others failed before."""
        if self._channels[candidate.name].succeeded(account):
            self._changed.set()

    def failed(self, candidate: Candidate, request_id: str, code: str, cool_s: float | None) -> None:
        self.failed_for(candidate, request_id, code, cool_s, "")

    def failed_for(self, candidate: Candidate, request_id: str, code: str, cool_s: float | None, account: str) -> None:
        """Note that a call failed, perhaps because of what the account's request contains; without one, for other reasons."""
        self._channels[candidate.name].failed(request_id, code, cool_s, account)
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
                self._channels[name].report = merged(report, self._channels[name].report)
            raise
        now = time.monotonic()
        for name, status in statuses.items():
            local = self._channels[name]
            local.status, local.status_at = status, now
            local.failing.intersection_update(local.report.accounts)

    def _end_wait(self) -> None:
        """Let those that wait for a synchronization go on: there is no further one."""
        if self._synced is not None:
            self._synced.set_result(None)
            self._synced = None

    def _count_in(self, candidate: Candidate) -> Candidate:
        self._channels[candidate.name].report.in_flight += 1
        return candidate

    async def _run(self) -> None:
        while not self._stopping:
            with suppress(TimeoutError):
                async with asyncio.timeout(SYNC_INTERVAL_S):
                    await self._changed.wait()
                    await asyncio.sleep(BATCH_S)
            self._changed.clear()
            synced, self._synced = self._synced, asyncio.get_running_loop().create_future()
            pause_s = 0.0
            try:
                await self.sync()
            except GatewayError as error:
                log.warning("channels_unknown", reason=str(error))
                pause_s = SYNC_INTERVAL_S
            if synced is not None:
                synced.set_result(None)
            await asyncio.sleep(pause_s)
