"""One request in words, from its arrival to its charge: a sentence, and its steps with their times."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal

import msgspec

from gateway.amounts import amount
from gateway.exchange import Outcome
from gateway.tools.plain_text import counted
from gateway.usage.record import Record
from gateway.usage.search import Found

NEVER_ARRIVED: Final = (
    "never arrived: the usage log has no request with this id. Compare it with the x-request-id of the response, and the "
    "address with the base address: only requests below /v1 are in the log. If it was refused among very many, a record with the "
    "operation `counted` stands for it: `gateway usage list` shows them."
)

NOT_IN_ALL: Final = "not found, but it may have arrived: not every gateway of the store could be asked:"

END_UNKNOWN: Final = "arrived; how it ended is not known here:"


class Step(msgspec.Struct, frozen=True):
    """A part of a story. `after_ms`: how long after the arrival it was, where that is known.

    `kind`: `arrival`, also of a request that was refused; `change` by a plugin; `attempt` at a channel; `first_byte`; `end`;
    `unavailable` of a channel that was not called; `charge`.
    """

    kind: Literal["arrival", "change", "attempt", "first_byte", "end", "unavailable", "charge"]
    text: str
    after_ms: int | None = None


def verdict(found: Found) -> str:
    """Return what happened to a request that was asked for, as far as it is known, in one sentence."""
    if found.record is not None and not found.unasked:
        return in_words(found.record)
    if not found.unasked:
        return NEVER_ARRIVED
    return "\n- ".join([NOT_IN_ALL if found.record is None else END_UNKNOWN, *found.unasked])


def in_words(record: Record) -> str:
    """Return what happened to a request, from its arrival to its charge, in one sentence."""
    if record.outcome is None:
        return "arrived, still under way"
    _, *others = steps(record)
    first = _arrival(record) if record.outcome is Outcome.REFUSED or not record.attempts else ""
    return ", ".join(part for part in (first, *(step.text for step in others)) if part)


def steps(record: Record) -> list[Step]:
    """Return what happened to a request, in the order in which it is told; the first step is its arrival."""
    found = [Step("arrival", _arrival(record), 0)]
    found += [Step("change", text) for text in _changes(record)]
    found += [Step("attempt", text) for text in _attempts(record)]
    if record.first_byte_ms is not None and record.attempts:
        found.append(Step("first_byte", f"first byte after {record.first_byte_ms} ms", record.first_byte_ms))
    if record.outcome is None:
        return found
    if text := _end(record, record.outcome):
        found.append(Step("end", text, None if record.outcome is Outcome.GATEWAY_CRASHED else record.duration_ms))
    found += [Step("unavailable", f"channel {name} {reason}") for name, reason in record.unavailable.items()]
    return [*found, Step("charge", text)] if (text := _charge(record)) else found


def heading(record: Record) -> str:
    """Return the line above a story."""
    named = (("account", record.account), ("model", record.model), ("model asked for", record.requested_model))
    parts = ", ".join(f"{name} {value}" for name, value in named if value)
    return f"{record.id}  {record.arrived_at}  {record.operation}{f'  {parts}' if parts else ''}"


def _arrival(record: Record) -> str:
    if record.outcome is not Outcome.REFUSED:
        return "arrived"
    by = f" by {record.refused_by}" if record.refused_by else ""
    others = record.events - 1
    counted = f", and {others} like it within {record.duration_ms} ms, which were only counted" if others > 0 else ""
    asked = f", asked for `{record.requested_model}`" if record.requested_model else ""
    return f"arrived and refused{by}: {_words(record.error_code)} ({record.status}){asked}{counted}"


def _changes(record: Record) -> Iterator[str]:
    """Yield which plugins changed the request or answered it."""
    if record.changed_by:
        yield f"changed by {' and '.join(record.changed_by)}"
    if record.answered_by:
        yield f"answered by {record.answered_by}"


def _attempts(record: Record) -> Iterator[str]:
    for tried in record.attempts:
        if not tried.error or (tried is record.attempts[-1] and record.first_byte_ms is not None):
            yield f"sent to channel {tried.channel}"
        else:
            yield f"tried channel {tried.channel}: {_failure(tried.error, tried.status)}"


def _end(record: Record, outcome: Outcome) -> str:
    events = f"after {counted(record.events, 'event')}"
    began = record.first_byte_ms is not None
    by = record.refused_by or "the gateway"
    at_fault = f"the plugin {record.refused_by}" if record.refused_by else "the gateway"
    ends = {
        Outcome.REFUSED: "",
        Outcome.COMPLETED: f"completed {events} and {record.duration_ms} ms"
        if record.events
        else f"answered {record.status}",
        Outcome.CALLER_GONE: f"cut by the caller {events}" if began else "cut by the caller before the first byte",
        Outcome.UPSTREAM_FAILED: f"no channel answered: {_failure(record.error_code, record.status)}",
        Outcome.UPSTREAM_TRUNCATED: f"ended early by the upstream {events}",
        Outcome.UPSTREAM_STALLED: f"cut {events} because the upstream sent nothing more (longest gap {record.longest_gap_ms} ms)",
        Outcome.UPSTREAM_ERROR_IN_STREAM: f"ended by an error of the upstream {events}",
        Outcome.STOPPED: f"stopped by {by} {events} and {record.duration_ms} ms: {_words(record.error_code)}",
        Outcome.GATEWAY_CRASHED: "never ended: the gateway's process died, and the hold ended with its lease",
        Outcome.INTERNAL_ERROR: f"failed because of an internal error of {at_fault} ({record.status})",
    }
    return ends[outcome]


def _charge(record: Record) -> str:
    if record.outcome is Outcome.GATEWAY_CRASHED and not record.charge_micros:
        return ""
    if not record.charge_micros:
        return f"charged nothing{_cost(record)}"
    source = " (estimated)" if record.usage_source == "estimated" else ""
    return f"charged {amount(record.charge_micros)}{source}{_split(record)}{_hold(record)}{_cost(record)}"


def _hold(record: Record) -> str:
    """Return how the hold grew before further attempts, or that the balance did not cover one."""
    held, refused = (record.price.get(name) for name in ("hold_micros", "hold_refused_micros"))
    grown = f", its hold grew to {amount(held)} with a further attempt" if isinstance(held, int) else ""
    if not isinstance(refused, int):
        return grown
    return f"{grown}, the balance did not cover a hold of {amount(refused)} for a further attempt"


def _split(record: Record) -> str:
    parts = [
        f"{tokens} {what}"
        for tokens, what in (
            (record.cached_tokens, "read from a cache"),
            (record.cache_write_tokens, "written to one"),
        )
        if tokens
    ]
    return f" for {record.prompt_tokens} prompt tokens, of which {' and '.join(parts)}" if parts else ""


def _cost(record: Record) -> str:
    known = f", cost {amount(record.cost_micros)}" if record.cost_micros else ""
    stated = record.upstream_cost_micros
    return known if stated is None else f"{known}, by the upstream's own account {amount(stated)}"


def _failure(code: str, status: int) -> str:
    return f"{_words(code)} ({status})" if status else _words(code)


def _words(code: str) -> str:
    return code.replace("_", " ") or "no reason recorded"
