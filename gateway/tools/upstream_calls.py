"""The calls of upstreams in the usage log: by which names a bill may have them, and what each was expected to cost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from gateway.errors import Misconfigured, cannot_use
from gateway.usage import queries
from gateway.usage.damage import UnusableFile
from gateway.usage.record import AttemptRecord, Record, decode

COLUMNS: Final = ("id", "arrived_at", "model", "channel", "upstream_request_id", "attempts", "upstream_cost_micros")
NANOS_IN_A_MICRO: Final = 1000
MAX_LINE: Final = 1024 * 1024

_attempts: Final = msgspec.json.Decoder(list[AttemptRecord]).decode


class Call(msgspec.Struct, frozen=True):
    """One call of an upstream. `names` are the ids that the upstream gave it, `cost` is in billionths, None where not known."""

    request: str
    day: str
    model: str
    channel: str
    names: tuple[str, ...]
    cost: int | None


def logged(folder: Path, *, since_ms: int | None, until_ms: int | None, unusable: list[UnusableFile]) -> Iterator[Call]:
    """Yield the calls of the usage log's files, in the order in which the requests arrived. Blocks."""
    rows = queries.rows(folder, COLUMNS, since_ms=since_ms, until_ms=until_ms, unusable=unusable)
    for *fields, attempts, stated in rows:
        if attempts is not None and attempts != "[]":
            yield from _calls(fields, _attempts(attempts), stated)


def exported(path: Path) -> Iterator[Call]:
    """Yield the calls of a file that `gateway usage export` printed, of another machine for example. Raises `Misconfigured`."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(iter(lambda: file.readline(MAX_LINE), b""), 1):
                if line.strip():
                    yield from _of_record(_decoded(path, number, line))
    except OSError as error:
        raise cannot_use(str(path), error, cure="give a file that `gateway usage export` printed") from None


def _decoded(path: Path, number: int, line: bytes) -> Record:
    try:
        return decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise Misconfigured(f"{path}:{number}: not a record; give a file that `gateway usage export` printed") from None


def _of_record(record: Record) -> Iterable[Call]:
    fields = (record.id, record.arrived_at, record.model, record.channel, record.upstream_request_id)
    return _calls(fields, record.attempts, record.upstream_cost_micros)


def _calls(fields: Sequence[Any], attempts: Sequence[AttemptRecord], stated: int | None) -> Iterator[Call]:
    request, arrived_at, model, channel, upstream_request_id = fields
    day, last = arrived_at[: len("2026-11-22")], attempts[-1] if attempts else None
    for attempt in attempts:
        own, completion, micros = attempt.upstream_request_id, attempt.completion_id, attempt.cost_micros
        if attempt is last:
            own, micros = own or upstream_request_id, stated if micros is None else micros
        names = (own, completion) if own and completion and own != completion else (own or completion,)
        cost = None if micros is None else micros * NANOS_IN_A_MICRO
        yield Call(request, day, model, attempt.channel or channel, names if names[0] else (), cost)
