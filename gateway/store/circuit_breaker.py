"""The circuit breaker of one worker: which channels may be called now.

A call of a healthy channel without limits needs no round trip to the store. The outcomes of calls are reported in the
background: at once if they may matter to other workers, else twice a second. The same round trip reads the channels' status.

A request that no other channel admits calls a channel whose cool-down is not firm.

`AccountBreaker` is the breaker for the calls of one account: what its requests cause is not held against others. `ChannelBreaker`
has what all accounts of the worker share.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from hashlib import blake2b
from operator import add
from typing import Final, Literal
from uuid import uuid4

import msgspec

from gateway.base.errors import MAX_RETRY_AFTER_S, GatewayError, Refused, StoreAway
from gateway.base.log import log
from gateway.config.channel import Channel
from gateway.domain.facts import Candidate, CircuitBreaker
from gateway.store.channels import (
    CLOSED,
    FIRST_EVENT_MS,
    OFF,
    AccountCoolDown,
    AccountReport,
    Admission,
    ChannelLimits,
    ChannelRefusal,
    ChannelReport,
    Channels,
    ChannelStatus,
    Condition,
    condition_in_words,
)

NO_CREDENTIAL: Final = "no credential: each is spent or switched off"

_HEALTHY: Final = Condition.HEALTHY
"""The name of a module is looked up faster than a member of an enum, and this is needed for each request."""
# A float is compared with a whole number in ten times the instructions.
_BOUNDS_MS: Final = tuple(map(float, FIRST_EVENT_MS))
RATE_LIMITED: Final = "upstream_rate_limited"
SYNC_INTERVAL_S: Final = 0.5
PROBES_LOOK_S: Final = 1.0
"""How often it is looked whether a channel is to be probed."""
LATENCY_INTERVAL_S: Final = 2.0
BATCH_S: Final = 0.005
"""How long an urgent report waits for others, to be sent with them."""

LEASE_MARGIN_S: Final = 60

MARGIN_S: Final = 0.05
"""How much longer than needed the announced time is, so that other workers, too, know that the cool-down is over."""


class ChannelBreaker:
    """Admits calls to channels that work and have a free slot; `start` and `stop` belong to its owner.

    An `account` is a digest, empty where a call is of none.
    """

    def __init__(self, store: Channels, channels: Mapping[str, Channel]) -> None:
        self._store = store
        self._channels = {name: LocalChannel(limits_of(name, channel)) for name, channel in channels.items()}
        self._worker = uuid4().hex[:12]
        self._changed = asyncio.Event()
        self._synced: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
        self._configured = channels
        self._probing: asyncio.Task[None] | None = None
        self.follows_latency = False
        """Whether `latency_ms` is kept up to date, which is read from the store every few seconds."""
        self.latency_ms: dict[str, int] = {}
        """Within which time 90 % of the last answers of a channel began, by all gateways; of a channel without answers nothing."""
        self._latency_read = 0.0

    def in_flight(self, candidate: Candidate) -> int:
        """Return how many calls of a channel this worker has in progress."""
        return self._channels[candidate.name].report.in_flight

    async def start(self) -> None:
        """Read the channels' status, if the store answers, and begin to synchronize in the background."""
        with suppress(GatewayError):
            await self.sync()
        loop = asyncio.get_running_loop()
        self._synced = loop.create_future()
        self._task = loop.create_task(self._run())
        if any(channel.probe is not None for channel in self._configured.values()):
            self._probing = loop.create_task(self._probe_forever())

    async def stop(self) -> None:
        """Send the last reports, if the store answers."""
        self._stopping = True
        if self._probing is not None:
            self._probing.cancel()
            await asyncio.wait([self._probing])
        self._changed.set()
        if self._task is not None:
            await self._task
        with suppress(GatewayError):
            await self.sync()
        if self._synced is not None:  # no synchronization follows for those that wait for one
            self._synced.set_result(None)
            self._synced = None

    def admit_at_once(self, candidates: Sequence[Candidate]) -> Candidate | None:
        """Return the first candidate where its channel is healthy for all accounts and has no limits, else None."""
        local = self._channels[candidates[0].name]
        return None if local.needs_store or local.status.accounts else self._count_in(candidates[0])

    async def admit(self, candidates: Sequence[Candidate], request_id: str, account: str = "") -> Candidate:
        """Return the first candidate that may be called, with at most one round trip. Raises `Refused` and `StoreAway`."""
        asked: list[Candidate] = []
        last_resorts: list[Candidate] = []
        for candidate in candidates:
            local = self._channels[candidate.name]
            wait_s, firm = local.wait_s(account)
            if wait_s == 0:
                asked.append(candidate)
                if not local.needs_store:
                    break
            if not firm:
                last_resorts.append(candidate)
        if asked and not self._channels[asked[0].name].needs_store:
            return self._count_in(asked[0])
        cooling = [other for other in last_resorts if other not in asked]
        insist = {other.name for other in cooling}
        asked += cooling
        wait_ms, told = 0, dict[str, ChannelRefusal]()
        if asked:
            admission = await self._ask_store(request_id, asked, insist)
            wait_ms = admission.wait_ms
            if admission.index is not None:
                chosen = asked[admission.index]
                if admission.probe:
                    self._channels[chosen.name].probe = request_id
                return self._count_in(chosen)
            told = {each.name: refusal for each, refusal in zip(asked, admission.refusals, strict=True)}
        refused = self._refusal(candidates, account, wait_ms / 1000)
        refused.unavailable = why_unavailable(candidates, self._channels, account, told)
        raise refused

    async def _ask_store(self, request_id: str, asked: Sequence[Candidate], insist: set[str]) -> Admission:
        try:
            return await self._store.admit(request_id, [self._channels[each.name].limits for each in asked], insist)
        except StoreAway:
            for candidate in asked:
                self._channels[candidate.name].report.left.append(request_id)
            raise

    def _refusal(self, candidates: Sequence[Candidate], account: str, store_wait_s: float) -> Refused:
        """Return the refusal where no candidate may be called."""
        disabled = [self._channels[candidate.name].status.condition in CLOSED for candidate in candidates]
        text = "No channel can serve this model at the moment. Retry later or choose another model."
        if all(disabled):
            text = "Every channel of this model is closed until the operator opens one. Choose another model."
        wait_s = self._wait_s(candidates, account)
        if store_wait_s and (not wait_s or store_wait_s < wait_s):
            wait_s = store_wait_s + MARGIN_S
        return Refused(
            503,
            "model_unavailable",
            text,
            type="upstream_error",
            retry_after_s=wait_s or MAX_RETRY_AFTER_S,
            should_retry=False if all(disabled) else None,
        )

    def _wait_s(self, candidates: Sequence[Candidate], account: str, asked_s: float = 0.0) -> float:
        """Return the seconds to announce until the account may call a candidate; 0 for no announcement."""
        waits = []
        for candidate in candidates:
            local = self._channels[candidate.name]
            wait_s, firm = local.wait_s(account)
            if local.status.condition not in CLOSED:
                waits.append(wait_s + MARGIN_S if firm else 0.0)
        if not waits:
            return asked_s
        return max(min(waits), asked_s)

    async def wait_s(self, candidates: Sequence[Candidate], account: str, asked_s: float) -> float:
        """Return the seconds to announce to the account after its calls failed, once the store knows of them; 0 for none.

        Where the store does not answer, the worker's own knowledge counts.
        """
        self._changed.set()
        if self._synced is not None:
            await asyncio.wait([self._synced])
        return self._wait_s(candidates, account, asked_s)

    def answered(self, candidate: Candidate, request_id: str, after_s: float) -> None:
        """Note that the upstream began its answer."""
        if self._channels[candidate.name].answered(request_id, after_s):
            self._changed.set()

    def failed(
        self,
        candidate: Candidate,
        request_id: str,
        code: str,
        cool_s: float | None,
        account: str = "",
        *,
        began: bool = False,
    ) -> None:
        """Note that a call failed, perhaps because of what the account's request contains; without one, for other reasons."""
        self._channels[candidate.name].failed(request_id, code, cool_s, account, began=began)
        self._changed.set()

    def starting(self, candidate: Candidate) -> None:
        self._channels[candidate.name].report.starting = True
        self._changed.set()

    def left(self, candidate: Candidate, request_id: str, succeeded: str | None = None) -> None:
        """Note that a call is over. `succeeded`: the account whose call it was, which matters where others failed before."""
        local = self._channels[candidate.name]
        local.report.in_flight -= 1
        if succeeded is not None and local.succeeded(succeeded):
            self._changed.set()
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
        for name, local in self._channels.items():
            local.report.credentials |= self._store.credentials.take_report(name)
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
            statuses[name] = local.status = self._with_credentials(name, status)
            local.status_at = now
            local.failing.intersection_update(local.report.accounts)
        self._store.on_status(statuses)
        if self.follows_latency and now - self._latency_read > LATENCY_INTERVAL_S:
            self._latency_read = now
            shown = {each.channel: each.figures.first_event_p90_ms for each in await self._store.show(list(statuses))}
            self.latency_ms = {name: p90_ms for name, p90_ms in shown.items() if p90_ms is not None}

    def _with_credentials(self, name: str, status: ChannelStatus) -> ChannelStatus:
        """Return the status of a channel with that of its credentials: without one that is switched on it is closed."""
        next_at = self._store.credentials.next_at(name, self._configured[name].credentials)
        if next_at <= time.monotonic() or status.condition is Condition.DISABLED:
            return status
        condition = Condition.NO_CREDENTIAL if next_at == OFF else status.condition
        return msgspec.structs.replace(status, condition=condition, refused=True)

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

    async def _probe_forever(self) -> None:
        """Probe the channels that have a `probe`, each so often while it cools, unless its upstream limits requests."""
        probed = {name: channel for name, channel in self._configured.items() if channel.probe is not None}
        due = dict.fromkeys(probed, 0.0)
        while True:
            await asyncio.sleep(PROBES_LOOK_S)
            for name, channel in probed.items():
                if self._is_probed(name) and time.monotonic() >= due[name]:
                    due[name] = time.monotonic() + (channel.probe or 0.0)
                    await self._probe(name, channel)

    def _is_probed(self, name: str) -> bool:
        status = self._channels[name].status
        return status.condition is Condition.COOLING and status.error != RATE_LIMITED

    async def _probe(self, name: str, channel: Channel) -> None:
        """Ask an upstream for nothing that costs: where it answers, its cool-down is over, else it becomes longer."""
        from gateway.store.probes import answers  # with an HTTP client, which few workers need here

        good = await answers(channel)
        log.info("channel_probed", channel=name, answers=good)
        if self._is_probed(name):
            self._channels[name].report.probe = "ok" if good else "failed"
            self._changed.set()

    async def why_not(self, candidate: Candidate, account: str, *, alone: bool = False) -> str:
        """Return why the account may not call the candidate; empty if it may. `alone`: no other channel can serve."""
        local = self._channels[candidate.name]
        if local.status.condition is not Condition.NO_CREDENTIAL:
            if alone:
                (snapshot,) = await self._store.show([candidate.name])
                admission = await self._store.look_alone(local.limits, cools=snapshot.firm)
            else:
                admission = await self._store.look([local.limits])
            if admission.index is None:
                return _told(admission.refusals[0])
            wait_s, firm = local.wait_s(account)
            if not firm and (alone or not wait_s):
                return ""
        return _known(local, account)


class AccountBreaker(CircuitBreaker):
    """Admits the calls of one request, and reports how they end for its account."""

    __slots__ = ("_account", "_health", "_succeeding")

    def __init__(self, health: ChannelBreaker, account: str) -> None:
        self._health = health
        self._account = digest_of(account)
        self._succeeding = False

    async def why_not(self, candidate: Candidate) -> str:
        return await self._health.why_not(candidate, self._account)

    async def why_not_alone(self, candidate: Candidate) -> str:
        return await self._health.why_not(candidate, self._account, alone=True)

    def admit_at_once(self, candidates: Sequence[Candidate]) -> Candidate | None:
        self._succeeding = False
        return self._health.admit_at_once(candidates)

    async def admit(self, candidates: Sequence[Candidate], request_id: str) -> Candidate:
        self._succeeding = False
        return await self._health.admit(candidates, request_id, self._account)

    def answered(self, candidate: Candidate, request_id: str, after_s: float) -> None:
        self._succeeding = True
        self._health.answered(candidate, request_id, after_s)

    def failed(self, candidate: Candidate, request_id: str, code: str, cool_s: float | None) -> None:
        began, self._succeeding = self._succeeding, False
        self._health.failed(candidate, request_id, code, cool_s, self._account, began=began)

    def unusable(self, candidate: Candidate, request_id: str, code: str, cool_s: float | None) -> None:
        self._succeeding = False
        self._health.failed(candidate, request_id, code, cool_s)

    def starting(self, candidate: Candidate) -> None:
        self._health.starting(candidate)

    async def wait_s(self, candidates: Sequence[Candidate], asked_s: float) -> float:
        return await self._health.wait_s(candidates, self._account, asked_s)

    def left(self, candidate: Candidate, request_id: str) -> None:
        self._health.left(candidate, request_id, self._account if self._succeeding else None)


@lru_cache(4096)
def digest_of(account: str) -> str:
    """Return a short digest of an account's name, under which its failures are counted; empty for no account."""
    return blake2b(account.encode(), digest_size=8).hexdigest() if account else ""


class LocalChannel(msgspec.Struct):
    """One channel as this worker knows it."""

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
        if status.condition is _HEALTHY and not status.accounts:
            return 0.0, False
        if status.condition in CLOSED:
            return MAX_RETRY_AFTER_S, True
        if status.condition is Condition.STARTING:
            return 1.0, False
        passed_s = time.monotonic() - self.status_at
        own = status.accounts.get(account) or AccountCoolDown()
        of_all, of_account = status.cool_ms / 1000 - passed_s, own.cool_ms / 1000 - passed_s
        return max(0.0, of_all, of_account), (of_all > 0 and status.firm) or (of_account > 0 and own.firm)

    @property
    def needs_store(self) -> bool:
        """Return whether only the store can decide if it may be called."""
        limits = self.limits
        return self.status.condition is not _HEALTHY or bool(limits.concurrent or limits.requests_per_minute)

    def answered(self, request_id: str, after_s: float) -> bool:
        """Count an answer, which began `after_s` after the call. Return whether other workers should know at once."""
        self.report.ok += 1
        self.report.first[bisect_left(_BOUNDS_MS, after_s * 1000)] += 1
        return self.end_probe(request_id, "ok")

    def succeeded(self, account: str) -> bool:
        """Note that a call of the account succeeded. Return whether it is one whose calls failed before."""
        if account not in self.failing and account not in self.status.accounts:
            return False
        self.failing.discard(account)
        self.report.accounts[account] = AccountReport(ok=True)
        return True

    def failed(self, request_id: str, code: str, cool_s: float | None, account: str, *, began: bool = False) -> None:
        """Count a failure, against the account if there is one. `began`: after the answer had begun."""
        cool_ms = -1 if cool_s is None else round(cool_s * 1000)
        self.report.error = code
        self.report.broken += began
        self.report.limited += code == RATE_LIMITED
        if not account:
            self.report.failed += 1
            self.report.cool_ms = max(self.report.cool_ms, cool_ms)
            self.end_probe(request_id, "failed")
            return
        self.failing.add(account)
        report = self.report.accounts.setdefault(account, AccountReport())
        report.failed, report.ok = report.failed + 1, False
        report.cool_ms = max(report.cool_ms, cool_ms)
        self.end_probe(request_id, "void")  # the store compares the failures of several accounts

    def end_probe(self, request_id: str, outcome: Literal["ok", "failed", "void"]) -> bool:
        """Note how the call that probes it ended. Return whether this is the one."""
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
        broken=earlier.broken + later.broken,
        limited=earlier.limited + later.limited,
        first=[*map(add, earlier.first, later.first)],
        starting=earlier.starting or later.starting,
        cool_ms=max(earlier.cool_ms, later.cool_ms),
        error=later.error or earlier.error,
        probe=later.probe or earlier.probe,
        left=earlier.left + later.left,
        in_flight=later.in_flight,
        accounts=_merge_accounts(earlier.accounts, later.accounts),
        credentials=earlier.credentials | later.credentials,
    )


def _merge_accounts(earlier: dict[str, AccountReport], later: dict[str, AccountReport]) -> dict[str, AccountReport]:
    """Merge the reports on accounts. Failures add up; where a call succeeded in either report, the later report stands."""
    merged = earlier | later
    for account in earlier.keys() & later.keys():
        before, after = earlier[account], later[account]
        if not (before.ok or after.ok):
            merged[account] = AccountReport(before.failed + after.failed, max(before.cool_ms, after.cool_ms))
    return merged


def why_unavailable(
    candidates: Iterable[Candidate],
    channels: Mapping[str, LocalChannel],
    account: str,
    told: Mapping[str, ChannelRefusal],
) -> dict[str, str]:
    """Return why the account may call none of `candidates`, by the channel's name.

    `told`: what the store said of those that it was asked for. Of the others, this is what the worker knows.
    """
    return {
        candidate.name: _told(told[candidate.name])
        if candidate.name in told
        else _known(channels[candidate.name], account)
        for candidate in candidates
    }


def _told(refusal: ChannelRefusal) -> str:
    match refusal.reason:
        case "disabled":
            return "disabled"
        case "cooling":
            return _cools(refusal.wait_ms / 1000, refusal.error)
        case "probing":
            return f"cooling until a call succeeds{_after(refusal.error)}, and another request tried it"
        case _:
            return "full"


def _known(channel: LocalChannel, account: str) -> str:
    status = channel.status
    if status.condition is Condition.NO_CREDENTIAL:
        return NO_CREDENTIAL
    if status.condition is Condition.DISABLED:
        return "disabled"
    passed_s = time.monotonic() - channel.status_at
    for_all_s = status.cool_ms / 1000 - passed_s
    if for_all_s > 0:
        return _cools(for_all_s, status.error)
    own_s = status.accounts.get(account, AccountCoolDown()).cool_ms / 1000 - passed_s
    return f"failing for this account, {_cools(max(0.0, own_s), status.error)}"


def _cools(seconds: float, error: str) -> str:
    until_ms = round((time.time() + seconds) * 1000)
    return f"{condition_in_words(Condition.COOLING, 0, until_ms)}{_after(error)}"


def _after(error: str) -> str:
    return f" after {error}" if error else ""
