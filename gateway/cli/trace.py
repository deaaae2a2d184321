"""`gateway trace`: one request in words, from its arrival to its charge."""

from __future__ import annotations

from typing import Final

import typer

from gateway.cli.common import ConfigOption, JsonOption, print_json
from gateway.cli.exits import EXIT_CODES
from gateway.cli.request_ids import RequestArgument
from gateway.cli.usage import find
from gateway.exchange import Outcome
from gateway.usage.record import Record
from gateway.usage.search import Found

NEVER_ARRIVED: Final = (
    "never arrived: the usage log has no request with this id. Compare it with the x-request-id of the response, and the "
    "address with the base address: only requests below /v1 are in the log. If it was refused among very many, a record with the "
    "operation `counted` stands for it: `gateway usage list` shows them."
)

NOT_IN_ALL: Final = "not found, but it may have arrived: not every gateway of the store could be asked:"

END_UNKNOWN: Final = "arrived; how it ended is not known here:"


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command()(trace)


def trace(
    request_id: RequestArgument,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show in a sentence what happened to a request.

    The exit code is 1 if it never arrived, or if it is not found and a gateway that may know of it could not be asked.

    Example: `gateway trace 01a1fccb-1807-7197-9f1b-61a58aba6c92`
    """
    found = find(config, request_id)
    record = found.record
    verdict = in_words(record) if record is not None and not found.unasked else _uncertain(found)
    if as_json:
        unasked = {"unasked": found.unasked} if record is None or found.unasked else {}
        print_json({"id": request_id, "verdict": verdict, "record": record} | unasked)
    else:
        typer.echo(f"{request_id}\n{verdict}" if record is None else f"{_heading(record)}\n{verdict}")
    if record is None:
        raise typer.Exit(EXIT_CODES["not_found"][0])


def in_words(record: Record) -> str:
    """Return what happened to a request, from its arrival to its charge, in one sentence."""
    if record.outcome is None:
        return "arrived, still under way"
    parts = [*_arrival(record), *_attempts(record), *_end(record), *_unavailable(record), _charge(record)]
    return ", ".join(part for part in parts if part)


def _uncertain(found: Found) -> str:
    if not found.unasked:
        return NEVER_ARRIVED
    return "\n- ".join([NOT_IN_ALL if found.record is None else END_UNKNOWN, *found.unasked])


def _heading(record: Record) -> str:
    named = (("account", record.account), ("model", record.model), ("unknown model", record.requested_model))
    parts = ", ".join(f"{name} {value}" for name, value in named if value)
    return f"{record.id}  {record.arrived_at}  {record.operation}{f'  {parts}' if parts else ''}"


def _arrival(record: Record) -> list[str]:
    if record.outcome is Outcome.REFUSED:
        by = f" by {record.refused_by}" if record.refused_by else ""
        others = record.events - 1
        counted = (
            f", and {others} like it within {record.duration_ms} ms, which were only counted" if others > 0 else ""
        )
        asked = f", asked for `{record.requested_model}`" if record.requested_model else ""
        return [f"arrived and refused{by}: {_words(record.error_code)} ({record.status}){asked}{counted}"]
    return [] if record.attempts else ["arrived"]


def _attempts(record: Record) -> list[str]:
    parts = [
        f"sent to channel {tried.channel}"
        if not tried.error or (tried is record.attempts[-1] and record.first_byte_ms is not None)
        else f"tried channel {tried.channel}: {_failure(tried.error, tried.status)}"
        for tried in record.attempts
    ]
    if record.first_byte_ms is not None and record.attempts:
        parts.append(f"first byte after {record.first_byte_ms} ms")
    return parts


def _unavailable(record: Record) -> list[str]:
    """Return why channels were not called."""
    return [f"channel {channel} {reason}" for channel, reason in record.unavailable.items()]


def _end(record: Record) -> list[str]:
    events = f"after {record.events} event{'' if record.events == 1 else 's'}"
    began = record.first_byte_ms is not None
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
        Outcome.STOPPED: f"stopped by the gateway {events} and {record.duration_ms} ms: {_words(record.error_code)}",
        Outcome.GATEWAY_CRASHED: "never ended: the gateway's process died, and the hold ended with its lease",
        Outcome.INTERNAL_ERROR: f"failed because of an internal error of {at_fault} ({record.status})",
    }
    return [ends[record.outcome]] if record.outcome else []


def _charge(record: Record) -> str:
    if record.outcome is Outcome.GATEWAY_CRASHED and not record.charge_micros:
        return ""
    if not record.charge_micros:
        return f"charged nothing{_cost(record)}"
    source = " (estimated)" if record.usage_source == "estimated" else ""
    return f"charged {record.charge_micros} micros{source}{_split(record)}{_hold(record)}{_cost(record)}"


def _hold(record: Record) -> str:
    """Return how the hold grew before further attempts, or that the balance did not cover one."""
    held, refused = record.price.get("hold_micros"), record.price.get("hold_refused_micros")
    grown = f", its hold grew to {held} micros with a further attempt" if held else ""
    return f"{grown}, the balance did not cover a hold of {refused} micros for a further attempt" if refused else grown


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
    known = f", cost {record.cost_micros} micros" if record.cost_micros else ""
    stated = record.upstream_cost_micros
    return known if stated is None else f"{known}, by the upstream's own account {stated} micros"


def _failure(code: str, status: int) -> str:
    return f"{_words(code)} ({status})" if status else _words(code)


def _words(code: str) -> str:
    return code.replace("_", " ") or "no reason recorded"
