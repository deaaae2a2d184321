"""The usage record: what is stored of every request that sent a complete head.

A record is written twice, at arrival (`outcome` is None) and at the end; the two are merged by their id. It has no text that the
caller chose, no path and no header, since any could be a token that was pasted in the wrong place. There are three exceptions:
the user agent, a model that is not in the catalogue or a field at fault, of which nothing is kept where it may be a secret
(`shown_name`), and the message of an error, which may name one of these. The upstream's usage object is kept as it came, without
the channel's credentials and up to a few kilobytes.

**References** are names that a caller gives its requests, so that it finds them also where it never got the answer with their id.

1. **Only a hash is kept**, for a caller may send anything as a reference.
2. **The account is its key**: what two accounts name alike has different hashes, so nothing is found or compared across accounts.
3. A reference may be that of many requests, such as those of one conversation.

**A name that a caller made up** is kept short, without control characters, and with nothing that may be a secret: a caller may
paste its token, or another service's key, where a name belongs. A name with the marks of one is not kept at all: a key is random,
so that it has long runs of letters and digits, or changes often between digits, small and capital letters. A password made of
words cannot be told from a name.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from hashlib import blake2b
from ipaddress import ip_network
from typing import Annotated, Any, Final, Literal

import msgspec
from multidict import MultiMapping, istr

from gateway.base.addresses import address_of
from gateway.base.errors import Refused
from gateway.base.ids import arrival_ms, check_time, utc
from gateway.base.text import may_be_secret, printable, without_secrets
from gateway.chat.usage import Usage
from gateway.domain.exchange import COMPLETED, NOTHING_SAID, Exchange, Outcome
from gateway.domain.facts import Caller
from gateway.domain.prices import Price, price_from
from gateway.operations.operation import Operation

MAX_NUMBER: Final = 2**53
"""No number of a record is larger, so that the sums of a file fit into the integers of SQLite."""

Number = Annotated[int, msgspec.Meta(ge=-MAX_NUMBER, le=MAX_NUMBER)]
NumberOrNone = Number | None

encode: Final = msgspec.json.Encoder().encode
OBJECTS: Final = ("price", "cost_price", "unavailable", "tags")
"""Fields that are stored as JSON objects."""

HEADER: Final = istr("X-Client-Request-Id")
MAX_LENGTH: Final = 512
DIGEST_BYTES: Final = 16
ACCEPTED: Final = f"1 to {MAX_LENGTH} printable ASCII characters"

MOST: Final = 128
"""Characters that are kept."""
MOST_OF_MESSAGE: Final = 300


class AttemptRecord(msgspec.Struct, frozen=True, gc=False):
    """One call of an upstream. `error` is the error code that it would have led to, or empty where it succeeded.

    `cost_micros`: what the channel bills for it, None where that is not known. `upstream_request_id` and `completion_id` are the
    names that the upstream gave the call, in the head of its answer and in the completion: bills have one of them. `dialect`: of an
    upstream with another API, whose answer was written anew; empty where it passed byte for byte. `message`, `code` and `type`: the
    upstream's own words about its error, cut to 300 characters and without anything that may be a secret.
    """

    channel: str
    status: int = 0
    error: str = ""
    cost_micros: int | None = None
    upstream_request_id: str = ""
    completion_id: str = ""
    dialect: str = ""
    message: str = ""
    code: str = ""
    type: str = ""


class Record(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One request. Times in whole milliseconds, sizes in bytes, money in micros.

    `arrived_at` is UTC in ISO 8601. `account`, `token_id`, `group` and `model` are empty until known; the token itself is
    never stored. `config` is the generation of the configuration that served the request. `outcome` is None until the request ends.

    `prompt_tokens` contains `cached_tokens` and `cache_write_tokens`. `charge_micros` was computed from them and `price`, so that
    a bill can be computed again. `cost_micros` is the cost of all attempts, by the upstream's own word where it states it, and
    `margin_micros` what the charge leaves of it; both are None where the cost of an attempt is not known. `cost_price` is the
    price of the last one. `upstream_usage` is the usage object that its upstream sent, `upstream_cost_micros` the cost that it
    stated, if any.

    `reference` is the hash of the reference that the caller gave the request, see `gateway.usage.record`.
    `requested_model` is the model that the caller named where the catalogue has no such model, or where a plugin chose another,
    else empty. `unavailable`: where no channel could be called, why not, in words by the channel's name. `changed_by`: the plugins
    that changed the request or its answer. `answered_by`: the plugin that answered in place of an upstream. `completion_id`: the id
    that the answer itself has, which callers log. `address` and `user_agent`: from where and with what it was sent, as far as
    `usage.callers` says. `tags`: what plugins have noted, by names of their own. `error_param` and `error_message`: the
    field that was at fault, and what the caller was told, as `shown_message` keeps it.

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
    changed_by: list[str] = []
    answered_by: str = ""
    completion_id: str = ""
    address: str = ""
    user_agent: str = ""
    tags: dict[str, str] = {}
    error_param: str = ""
    error_message: str = ""


class WrittenRecord(Record, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """A record whose line leaves out what has its default value, as most fields have."""


decode: Final = msgspec.json.Decoder(Record).decode
"""Decode a record from its JSON. Raises `msgspec.MsgspecError` (`DecodeError`, `ValidationError`)."""

NUMBERS: Final = tuple(field.name for field in msgspec.structs.fields(Record) if field.type == Number)
NUMBERS_OR_NONE: Final = tuple(field.name for field in msgspec.structs.fields(Record) if field.type == NumberOrNone)


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


def charge_of(record: Record) -> int:
    """Return the charge, computed again from the record's own price and tokens."""
    answers = 1 if "request" in record.price else 0
    tokens = (record.prompt_tokens, record.completion_tokens, record.usage_source, record.cached_tokens)
    units: Any = record.price.get("units", 0)
    usage = Usage(*tokens, record.cache_write_tokens, answers, units=int(units))
    cost = price_from(record.price).of(usage)
    capped: Any = record.price.get("capped_micros", cost)
    return min(cost, int(capped))


def is_reference(text: str) -> bool:
    """Return whether a text can be a reference."""
    return 0 < len(text) <= MAX_LENGTH and text.isascii() and text.isprintable()


def reference_in(headers: Mapping[str, str]) -> str:
    """Return the reference in the header `X-Client-Request-Id`; empty where there is none.

    Raises `Refused` for one that cannot be kept, so that a caller does not rely on it.
    """
    text = headers.get(HEADER)
    if text is None:
        return ""
    several = isinstance(headers, MultiMapping) and len(headers.getall(HEADER)) > 1
    if several or not is_reference(text):
        raise Refused(400, "invalid_request", f"Send one header {HEADER} with {ACCEPTED}, or leave it out.")
    return text


def hashed_reference(account: str, reference: str) -> str:
    """Return the hash of a reference, which records have in its place: the same for the same account and reference."""
    key = blake2b(account.encode(), digest_size=blake2b.MAX_KEY_SIZE).digest()
    return blake2b(reference.encode(), key=key, digest_size=DIGEST_BYTES).hexdigest()


@lru_cache(maxsize=1024)
def caller_of(kept: str, peer: str, agent: str) -> tuple[str, str]:
    """Return the address and the user agent of a caller as records have them. `kept`: `full`, `prefix` or `none`."""
    if kept == "none":
        return "", ""
    if (address := address_of(peer)) is None:
        shown = ""
    elif kept == "full":
        shown = str(address)
    else:
        shown = str(ip_network((address, 24 if address.version == 4 else 48), strict=False))
    return shown, without_secrets(agent[: 2 * MOST])[:MOST]


def shown_name(text: str) -> str:
    """Return the text as a record may have it, or its length alone where it may be a secret."""
    if not text:
        return ""
    if may_be_secret(text[: 2 * MOST]):
        return f"(hidden: {len(text)} characters that may be a secret)"
    return printable(text[:MOST])[:MOST]


def shown_message(text: str) -> str:
    """Return the message of an error as a record may have it: short, and without words that may be secrets."""
    return without_secrets(text[: 2 * MOST_OF_MESSAGE])[:MOST_OF_MESSAGE]


BEGIN: Final = b'{"id":"","arrived_at":""'
BEGIN_SIZE: Final = len(BEGIN) + 36 + len("2026-11-21T06:21:30.123Z")
"""The bytes of an arrival's line that are those of the end, too."""
NO_PRICE: Final[Mapping[str, object]] = {}
MOST_CALLERS: Final = 8
"""Addresses with their user agents for which the rest of a line is kept."""


class PreparedAttempt(msgspec.Struct, gc=False, omit_defaults=True):
    """The fields of the one attempt, as `AttemptRecord` has them."""

    channel: str
    status: int
    upstream_request_id: str = ""
    completion_id: str = ""
    cost_micros: int | None = None


class PreparedEnd(msgspec.Struct, gc=False, omit_defaults=True):
    """The fields of an end that differ between the requests of a plan and a caller's address, as `Record` has them."""

    attempts: tuple[PreparedAttempt]
    price: Mapping[str, object]
    usage_source: str
    prompt_tokens: int
    completion_tokens: int
    charge_micros: int
    first_byte_ms: int
    duration_ms: int
    events: int
    bytes: int
    upstream_usage: str
    upstream_request_id: str = ""
    completion_id: str = ""
    longest_gap_ms: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    cost_micros: int | None = None
    margin_micros: int | None = None
    upstream_cost_micros: int | None = None


class PreparedRecord:
    """The lines of the requests of one caller for one model: what they have in common is encoded once.

    An end is that of an answer that one upstream gave whole. Its values cannot be wrong, so it is not read again to check it, as
    those are that plugins may have a part in.
    """

    __slots__ = ("_arrival", "_ended", "_model", "_same")

    def __init__(self, operation: Operation, generation: int, gateway: str, caller: Caller, model: str) -> None:
        arrival = WrittenRecord(id="", arrived_at="", operation=operation, config=generation, gateway=gateway)
        self._model = model
        self._arrival = encode(arrival)[len(BEGIN) - 1 :]
        self._ended = msgspec.structs.replace(
            arrival,
            account=caller.account,
            token_id=caller.token_id,
            group=caller.group,
            model=model,
            status=200,
            outcome=COMPLETED,
        )
        self._same: dict[tuple[str, str, str], bytes] = {}

    def arrived(self, exchange: Exchange) -> bytes:
        """Return the line of an arrival."""
        id_ = exchange.request_id
        return ('{"id":"' + id_ + '","arrived_at":"' + utc(arrival_ms(id_))).encode() + self._arrival

    def ended(self, exchange: Exchange, arrival: bytes, address: str, user_agent: str) -> bytes | None:
        """Return the line of an end, None for a request that has more to tell. `arrival`: the line of its arrival."""
        attempts, charge = exchange.calls, exchange.charged
        if (
            len(attempts) != 1
            or exchange.model != self._model
            or exchange.outcome is not COMPLETED
            or exchange.status != 200
            or exchange.error is not None
            or exchange.notes is not None
            or exchange.changed_by
            or exchange.answered_by
            or exchange.refused_by
            or exchange.first_byte is None
            or exchange.ended is None
        ):
            return None
        attempt = attempts[0]
        usage, cost, channel = attempt.usage, attempt.cost, exchange.channel
        if (
            attempt.channel != channel
            or attempt.status != 200
            or attempt.error
            or attempt.dialect
            or attempt.said is not NOTHING_SAID
            or not usage.answers
            or (charge is not None and charge.usage is not usage)
            or (cost is not None and (cost.tiers or cost.unit))
        ):
            return None
        upstream_id, completion_id = attempt.upstream_request_id[:MOST], attempt.completion_id[:MOST]
        micros = 0 if charge is None else charge.micros
        costs, events, size = attempt.cost_micros, exchange.events, exchange.bytes
        prompt, completion = usage.prompt_tokens, usage.completion_tokens
        cached, written = usage.cached_tokens, usage.cache_write_tokens
        if type(prompt + completion + cached + written + events + size) is not int:  # a plugin has set another one
            return None
        started = exchange.started
        end = PreparedEnd(
            (PreparedAttempt(channel, 200, upstream_id, completion_id, costs),),
            NO_PRICE if charge is None else charge.price,
            usage.source,
            prompt,
            completion,
            micros,
            round((exchange.first_byte - started) * 1000),
            round((exchange.ended - started) * 1000),
            events,
            size,
            attempt.reported,
            upstream_id,
            completion_id,
            round(exchange.longest_gap_s * 1000),
            cached,
            written,
            costs,
            None if costs is None else micros - costs,
            attempt.stated_micros,
        )
        same = self._same.get((channel, address, user_agent)) or self._add(channel, address, user_agent, cost)
        return b"".join((arrival[:BEGIN_SIZE], b",", encode(end)[1:-1], same))

    def _add(self, channel: str, address: str, user_agent: str, cost: Price | None) -> bytes:
        """Return the rest of the line, which is the same for each request of a caller that a channel serves."""
        if len(self._same) >= MOST_CALLERS:
            self._same.clear()
        price = {} if cost is None else cost.record(Usage(answers=1))
        served = msgspec.structs.replace(
            self._ended, channel=channel, cost_price=price, address=address, user_agent=user_agent
        )
        found = self._same[channel, address, user_agent] = encode(served)[len(BEGIN) :]
        return found
