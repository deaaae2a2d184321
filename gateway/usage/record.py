"""The usage record: what is stored of every request that sent a complete head.

A record is written twice, at arrival (`outcome` is None) and at the end; the two are merged by their id. It has no text that the
caller chose, no path and no header, since any could be a token that was pasted in the wrong place; but for a model that is not in
the catalogue, of which nothing is kept where it may be a secret (`gateway.usage.shown_name`). The upstream's usage object is kept
as it came, without the channel's credentials and up to a few kilobytes.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from gateway.exchange import Outcome
from gateway.request_id import check_time

MAX_NUMBER: Final = 2**53
"""No number of a record is larger, so that the sums of a file fit into the integers of SQLite."""

Number = Annotated[int, msgspec.Meta(ge=-MAX_NUMBER, le=MAX_NUMBER)]
NumberOrNone = Number | None


class AttemptRecord(msgspec.Struct, frozen=True, gc=False):
    """One call of an upstream. `error` is the error code that it would have led to, or empty where it succeeded.

    `cost_micros`: what the channel bills for it, None where that is not known. `upstream_request_id` and `completion_id` are the
    names that the upstream gave the call, in the head of its answer and in the completion: bills have one of them. `dialect`: of an
    upstream with another API, whose answer was written anew; empty where it passed byte for byte.
    """

    channel: str
    status: int = 0
    error: str = ""
    cost_micros: int | None = None
    upstream_request_id: str = ""
    completion_id: str = ""
    dialect: str = ""


class Record(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One request. Times in whole milliseconds, sizes in bytes, money in micros.

    `arrived_at` is UTC in ISO 8601. `account`, `token_id`, `group` and `model` are empty until known; the token itself is
    never stored. `config` is the generation of the configuration that served the request. `outcome` is None until the request ends.

    `prompt_tokens` contains `cached_tokens` and `cache_write_tokens`. `charge_micros` was computed from them and `price`, so that a
    bill can be computed again. `cost_micros` is the cost of all attempts and `margin_micros` what the charge leaves of it; both
    are None where the cost of an attempt is not known. `cost_price` is the price of the last attempt. `upstream_usage` is the usage
    object that its upstream sent, `upstream_cost_micros` the cost that it stated, if any.

    `reference` is the hash of the reference that the caller gave the request, see `gateway.usage.reference`.
    `requested_model` is the model that the caller named where the catalogue has no such model, else empty. `unavailable`: where no
    channel could be called, why not, in words by the channel's name.

    A record with the operation `counted` stands for `events` refused requests, which came within `duration_ms` of `arrived_at`.
    Its other fields are those of the first of them.

    `gateway` is the one that received the request: the first eight digits of its installation, see `gateway gateways list`.
    """

    id: str
    arrived_at: str
    operation: str = ""
    account: str = ""
    token_id: str = ""
    group: str = ""
    model: str = ""
    channel: str = ""
    upstream_request_id: str = ""
    attempts: list[AttemptRecord] = []
    status: Number = 0
    outcome: Outcome | None = None
    error_code: str = ""
    refused_by: str = ""
    prompt_tokens: Number = 0
    completion_tokens: Number = 0
    usage_source: Literal["upstream", "estimated", "none"] = "none"
    charge_micros: Number = 0
    price: dict[str, object] = {}
    first_byte_ms: NumberOrNone = None
    duration_ms: Number = 0
    longest_gap_ms: Number = 0
    events: Number = 0
    bytes: Number = 0
    config: Number = 0
    cached_tokens: Number = 0
    cache_write_tokens: Number = 0
    cost_micros: NumberOrNone = None
    margin_micros: NumberOrNone = None
    cost_price: dict[str, object] = {}
    upstream_cost_micros: NumberOrNone = None
    upstream_usage: str = ""
    reference: str = ""
    requested_model: str = ""
    unavailable: dict[str, str] = {}
    gateway: str = ""


encode: Final = msgspec.json.Encoder().encode
decode: Final = msgspec.json.Decoder(Record).decode
"""Decode a record from its JSON. Raises `msgspec.MsgspecError` (`DecodeError`, `ValidationError`)."""


NUMBERS: Final = tuple(field.name for field in msgspec.structs.fields(Record) if field.type == Number)
NUMBERS_OR_NONE: Final = tuple(field.name for field in msgspec.structs.fields(Record) if field.type == NumberOrNone)
OBJECTS: Final = ("price", "cost_price", "unavailable")
"""Fields that are stored as JSON objects."""


def line_of(record: Record) -> bytes:
    """Return the line of a record. Raises `ValueError` or `TypeError` for one that the database cannot store."""
    try:
        line = encode(record)
    except (OverflowError, RecursionError) as error:
        raise ValueError(f"the record has no JSON: {error}") from None
    checked(line)
    return line


def checked(line: bytes) -> Record:
    """Return the record of a line that the database can store. Raises `ValueError`, also for a line that is no record."""
    try:
        record = decode(line)
    except RecursionError:
        raise ValueError("the record is nested too deeply") from None
    check_time(record.id)
    return record
