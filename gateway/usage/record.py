"""The usage record: what is stored of every request that sent a complete head.

A record is written twice, at arrival (`outcome` is None) and at the end; the two are merged by their id. It has no text that the
caller chose: no path, no header, no name that is not in the catalogue. Any of them could be a token that was pasted in the
wrong place. The upstream's usage object is kept as it came, without the channel's credentials and up to a few kilobytes.
"""

from __future__ import annotations

from operator import attrgetter
from types import NoneType
from typing import Final, Literal

import msgspec

from gateway.exchange import Operation, Outcome
from gateway.request_id import check_time

MAX_NUMBER: Final = 2**53
"""No number of a record is larger, so that the sums of a file fit into the integers of SQLite."""


class AttemptRecord(msgspec.Struct, frozen=True):
    """One call of an upstream. `error` is the error code that it would have led to, or empty where it succeeded.

    `cost_micros`: what the channel bills for it, None where that is not known. `upstream_request_id` and `completion_id` are the
    names that the upstream gave the call, in the head of its answer and in the completion: bills have one of them.
    """

    channel: str
    status: int = 0
    error: str = ""
    cost_micros: int | None = None
    upstream_request_id: str = ""
    completion_id: str = ""


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One request. Times in whole milliseconds, sizes in bytes, money in micros.

    `arrived_at` is UTC in ISO 8601. `account`, `token_id`, `group` and `model` are empty until known; the token itself is
    never stored. `config` is the generation of the configuration that served the request. `outcome` is None until the request ends.

    `prompt_tokens` contains `cached_tokens` and `cache_write_tokens`. `charge_micros` was computed from them and `price`, so that a
    bill can be computed again. `cost_micros` is the cost of all attempts and `margin_micros` what the charge leaves of it; both
    are None where the cost of an attempt is not known. `cost_price` is the price of the last attempt. `upstream_usage` is the usage
    object that its upstream sent, `upstream_cost_micros` the cost that it stated, if any.

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
    status: int = 0
    outcome: Outcome | None = None
    error_code: str = ""
    refused_by: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    usage_source: Literal["upstream", "estimated", "none"] = "none"
    charge_micros: int = 0
    price: dict[str, object] = {}
    first_byte_ms: int | None = None
    duration_ms: int = 0
    longest_gap_ms: int = 0
    events: int = 0
    bytes: int = 0
    config: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    cost_micros: int | None = None
    margin_micros: int | None = None
    cost_price: dict[str, object] = {}
    upstream_cost_micros: int | None = None
    upstream_usage: str = ""
    gateway: str = ""


encode: Final = msgspec.json.Encoder().encode
decode: Final = msgspec.json.Decoder(Record).decode
"""Decode a record from its JSON. Raises `msgspec.MsgspecError` (`DecodeError`, `ValidationError`)."""


TEXTS: Final = (
    *("id", "arrived_at", "operation", "account", "token_id", "group", "model", "channel", "upstream_request_id"),
    *("error_code", "refused_by", "usage_source", "upstream_usage", "gateway"),
)
NUMBERS: Final = (
    *("status", "prompt_tokens", "completion_tokens", "charge_micros", "duration_ms", "longest_gap_ms"),
    *("events", "bytes", "config", "cached_tokens", "cache_write_tokens"),
)
NUMBERS_OR_NONE: Final = ("first_byte_ms", "cost_micros", "margin_micros", "upstream_cost_micros")
PRICES: Final = ("price", "cost_price")
_texts: Final = attrgetter(*TEXTS)
_numbers: Final = attrgetter(*NUMBERS)
_numbers_or_none: Final = attrgetter(*NUMBERS_OR_NONE)
_TEXTS: Final = {str, Operation}
"""The types of the texts: the operation of a request is a member of `Operation`, which is encoded as a text."""
_NUMBER_OR_NONE: Final = {int, NoneType}
_SCALARS: Final = {str, int, float}
_SOURCES: Final = ("upstream", "estimated", "none")


def line_of(record: Record) -> bytes:
    """Return the line of a record. Raises `ValueError` or `TypeError` for one that the database cannot store."""
    try:
        line = encode(record)
    except (OverflowError, RecursionError) as error:
        raise ValueError(f"the record has no JSON: {error}") from None
    if not _is_plain(record):
        checked(line)
    return line


def checked(line: bytes) -> Record:
    """Return the record of a line that the database can store. Raises `ValueError`, also for a line that is no record."""
    try:
        record = decode(line)
    except RecursionError:
        raise ValueError("the record is nested too deeply") from None
    check_time(record.id)
    numbers = [number for number in (*_numbers(record), *_numbers_or_none(record)) if number is not None]
    if max(numbers) > MAX_NUMBER or min(numbers) < -MAX_NUMBER:
        raise ValueError(f"a number is too large: {max(map(abs, numbers))}")
    return record


def _is_plain(record: Record) -> bool:
    """Return whether every value has the type of its field, so that the line needs not be decoded to know that it can be.

    It costs a third of decoding. False says nothing: `checked` decides.
    """
    for text in _texts(record):
        if type(text) not in _TEXTS:
            return False
    for number in _numbers(record):
        if type(number) is not int or not -MAX_NUMBER <= number <= MAX_NUMBER:
            return False
    for number in _numbers_or_none(record):
        if number is not None and (type(number) is not int or not -MAX_NUMBER <= number <= MAX_NUMBER):
            return False
    outcome, price, cost_price = record.outcome, record.price, record.cost_price
    if not (
        (outcome is None or type(outcome) is Outcome)
        and record.usage_source in _SOURCES
        and type(price) is type(cost_price) is dict
        and type(record.attempts) is list
    ):
        return False
    for name, value in (*price.items(), *cost_price.items()):
        if type(name) is not str or type(value) not in _SCALARS:
            return False
    for attempt in record.attempts:
        if not (
            type(attempt) is AttemptRecord
            and type(attempt.channel) is type(attempt.error) is str
            and type(attempt.upstream_request_id) is type(attempt.completion_id) is str
            and type(attempt.status) is int
            and type(attempt.cost_micros) in _NUMBER_OR_NONE
        ):
            return False
    check_time(record.id)
    return True
