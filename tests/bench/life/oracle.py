"""The judgement of each answer: what its caller saw, what the usage log says, and what was done at the time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gateway import Outcome
from gateway.config.channel import Channel
from gateway.usage.record import Record
from tests.bench.life.answers import KINDS, WHOLE
from tests.bench.life.busy import BUSY
from tests.bench.life.charges import charge_problem
from tests.bench.life.seen import Saw, Seen
from tests.bench.life.world import World

STORE: Final = ("store away", "disk full", "restart")
DIED: Final = ("worker killed", "restart")
NEAR_S: Final = 1.0
BACK_S: Final = 6.0
"""Seconds after a store was away, or the gateway stopped, until all of it serves again."""
COOL_S: Final = 40.0
"""Seconds for which a channel cools down at most after its network was bad."""

EXCUSES: Final = (
    (STORE, BACK_S, {"503 service_unavailable"}),
    (("clock",), NEAR_S, {"503 service_unavailable"}),
    (("worker killed",), NEAR_S, {"no answer", "cut off"}),
    (("restart",), BACK_S, {"no answer", "cut off", "cut service_unavailable", "503 service_unavailable"}),
)
"""Disturbances, how long they last on, and what any caller may see of them."""
OF_A_BUSY_MACHINE: Final = {
    *("no answer", "cut off", "cut upstream_timeout", "504 upstream_timeout", "502 upstream_unreachable"),
    *(
        "502 upstream_error",
        "503 model_unavailable",
        "503 service_unavailable",
        "408 body_timeout",
        "408 invalid_request",
    ),
}
"""What timers do where neither the gateway nor its upstreams get the CPU."""
OF_THE_NETWORK: Final = {
    *("502 upstream_error", "502 upstream_unreachable", "504 upstream_timeout", "503 model_unavailable"),
    *("cut upstream_truncated", "cut upstream_timeout"),
}
MODELS_ENDS: Final = {
    "seasonal": {"404 model_not_found"},
    "managed": {"401 token_disabled", "403 account_inactive", "402 insufficient_balance", "503 model_unavailable"},
    "exact": {"402 insufficient_balance"},
}
CUT_OUTCOMES: Final = {
    "upstream_truncated": {Outcome.UPSTREAM_TRUNCATED},
    "upstream_timeout": {Outcome.UPSTREAM_STALLED, Outcome.STOPPED},
    "upstream_error": {Outcome.STOPPED, Outcome.UPSTREAM_ERROR_IN_STREAM},
    "service_unavailable": {Outcome.STOPPED},
    "of the upstream": {Outcome.UPSTREAM_ERROR_IN_STREAM},
}
LEFT_OUTCOMES: Final = {
    *(Outcome.CALLER_GONE, Outcome.STOPPED, Outcome.REFUSED, Outcome.UPSTREAM_FAILED, Outcome.UPSTREAM_STALLED),
    *(Outcome.UPSTREAM_TRUNCATED,),
}


def in_words(seen: Seen) -> str:
    """Put what a caller saw into words, as `Kind.ends` has them."""
    match seen.saw:
        case Saw.ERROR:
            return f"{seen.status} {seen.code}"
        case Saw.CUT:
            return {"": "cut off", "of the upstream": "cut"}.get(seen.code, f"cut {seen.code}")
        case _:
            return str(seen.saw)


class Oracle:
    """Judges by the usage log, `records`, each id with all its rows."""

    def __init__(self, world: World, records: dict[str, list[Record]], prices: dict[str, set[tuple[int, int]]]) -> None:
        self._world = world
        self._records = records
        self._prices = prices
        self._by_tag = {
            rows[0].upstream_request_id: rows[0] for rows in records.values() if rows[0].upstream_request_id
        }

    def problems(self, seen: Seen) -> Iterator[str]:
        """Yield what is wrong with one request."""
        words = in_words(seen)
        if seen.saw is Saw.HANG:
            yield f"hang: no end of the answer {seen.problem}"
        if seen.saw is Saw.UNREADABLE:
            yield f"unreadable: {seen.problem}"
        if seen.status == 500 or seen.code == "internal_error":
            yield f"internal error: {words}"
        if seen.saw is Saw.ERROR and seen.status in (429, 503) and seen.kind != "looks" and not seen.retry_after:
            yield f"no Retry-After: {words}"
        if not self._allowed(seen, words):
            yield f"not allowed: {seen.model or seen.kind} gave {words}"
        if (
            seen.saw is Saw.WHOLE
            and seen.kind != "looks"
            and not (seen.finish or seen.kind in ("takes JSON", "malformed"))
        ):
            yield "whole without a finish"
        yield from self._record_problems(seen)

    def _allowed(self, seen: Seen, words: str) -> bool:
        if seen.saw in (Saw.LEFT, Saw.HANG, Saw.UNREADABLE):
            return True
        ends = set(KINDS[seen.model].ends if seen.model else {WHOLE, words}) | MODELS_ENDS.get(seen.model, set())
        if words in ends or str(seen.status) in ends:
            return True
        for kinds, after, excused in EXCUSES:
            if words in excused and self._around(seen, kinds, after):
                return True
        if seen.model == "proxied" and words in OF_THE_NETWORK and self._around(seen, ("network",), COOL_S):
            return True
        if words in OF_A_BUSY_MACHINE and self._around(
            seen, (BUSY,), COOL_S if words == "503 model_unavailable" else NEAR_S
        ):
            return True
        return not seen.honest and self._hostile(seen, words)

    def _hostile(self, seen: Seen, words: str) -> bool:
        """Return whether a caller that did something wrong may see this. Its own function checks what it expects."""
        if seen.saw is Saw.ERROR:
            return 400 <= seen.status < 500
        return seen.kind in ("sends half", "pipelines", "malformed", "never reads")

    def _around(self, seen: Seen, kinds: tuple[str, ...], after: float, later: float = 0.2) -> bool:
        return bool(self._world.timeline.around(seen.sent - 0.2, seen.ended + later, kinds, after))

    def record_of(self, seen: Seen) -> Record | None:
        """Return the record of a request by the id that its caller got, or by the one that the upstream got."""
        rows = self._records.get(seen.id)
        return rows[0] if rows else self._by_tag.get(seen.tag)

    def _record_problems(self, seen: Seen) -> Iterator[str]:
        record = self.record_of(seen)
        if record is None:
            unwritable = seen.saw is Saw.ERROR and self._around(seen, ("disk full",), BACK_S)
            if seen.id and seen.recorded and not unwritable:
                yield "no record of an id that a caller holds"
            return
        if len(self._records[record.id]) != 1:
            yield f"{len(self._records[record.id])} records of one id"
        if record.outcome not in self._outcomes(seen):
            when = "outcome while the disk was full" if self._around(seen, ("disk full",), BACK_S) else "outcome"
            yield f"{when}: {record.outcome} {record.error_code}, but the caller saw {in_words(seen)}"
        said = (record.status, record.error_code)
        closed = record.outcome is Outcome.GATEWAY_CRASHED
        if seen.saw is Saw.ERROR and seen.recorded and not closed and said != (seen.status, seen.code):
            yield f"record says {record.status} {record.error_code}, but the caller saw {in_words(seen)}"
        served = self._world.upstreams.served.get(seen.tag, [])
        doubtful = seen.model == "proxied" and self._around(seen, ("network",), COOL_S)
        doubtful |= seen.saw is Saw.LEFT and self._around(seen, (BUSY,), NEAR_S)
        if seen.model and (
            problem := charge_problem(seen, record, served, self._prices[seen.model], doubtful=doubtful)
        ):
            yield f"charge: {problem}"

    def _outcomes(self, seen: Seen) -> set[Outcome]:
        """Return the outcomes that agree with what the caller saw."""
        # An answer is read on after its caller has left.
        later = NEAR_S + Channel(base_url="http://127.0.0.1").drain_limit if seen.saw is Saw.LEFT else 0.2
        crashed = {Outcome.GATEWAY_CRASHED} if self._around(seen, DIED, NEAR_S, later) else set()
        match seen.saw:
            case Saw.WHOLE:
                return {Outcome.COMPLETED}
            case Saw.ERROR if seen.code.startswith("upstream_") or seen.code == "oops":
                return {Outcome.UPSTREAM_FAILED} | crashed
            case Saw.ERROR:
                return {Outcome.REFUSED, Outcome.UPSTREAM_FAILED} | crashed
            case Saw.CUT if seen.code:
                return CUT_OUTCOMES.get(seen.code, set()) | crashed
            case Saw.CUT:
                # The end is recorded before it is written: a kill in between leaves a whole answer without its last chunk,
                # and a caller that reads slowly without what it had not read yet.
                behind = seen.finish or seen.kind == "reads slowly"
                completed = {Outcome.COMPLETED} if behind and crashed else set()
                return crashed | completed | {Outcome.STOPPED, Outcome.UPSTREAM_TRUNCATED, Outcome.UPSTREAM_STALLED}
            case _:
                served = self._world.upstreams.served.get(seen.tag, [])
                completed = {Outcome.COMPLETED} if seen.finish or any(each.finished for each in served) else set()
                return LEFT_OUTCOMES | completed | crashed
