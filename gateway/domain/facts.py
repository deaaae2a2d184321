"""The facts that plugins share: the caller, the candidates, the route. One plugin provides a fact, others require it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeVar

import msgspec

from gateway.config.channel import Channel
from gateway.config.schema import LARGEST_BUDGET, LARGEST_RATE
from gateway.domain.prices import Price

Allowance = TypeVar("Allowance", "AccountLimits", "Budgets")


IN_MICROS: Final = {name: f"{name}_micros" for name in ("day", "week", "month", "total", "session")}
"""The budgets of money, by their names in JSON."""


class AccountLimits(msgspec.Struct, frozen=True):
    """What an account or a token may take, each from 1 to `LARGEST_RATE`.

    None means no such limit; in `Caller.limits` it means the one of the plugin's settings. The tokens and requests of a whole
    minute may be taken at once and become available again evenly. Raises `ValueError` for other numbers.
    """

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrent: int | None = None

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value is not None and not 1 <= value <= LARGEST_RATE:
                raise ValueError(f"{name} must be from 1 to {LARGEST_RATE}; leave it out for no limit")


class Budgets(
    msgspec.Struct,
    frozen=True,
    rename=IN_MICROS,
):
    """What may be spent in each calendar window and in each session, in micros, and how many requests a day and in each session.

    None: no such budget. Raises `ValueError` for a number that is not from 1 to `LARGEST_BUDGET`.
    """

    day: int | None = None
    week: int | None = None
    month: int | None = None
    total: int | None = None
    requests: int | None = None
    session: int | None = None
    session_requests: int | None = None

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value is not None and not 1 <= value <= LARGEST_BUDGET:
                raise ValueError(f"the budget {name} must be from 1 to {LARGEST_BUDGET}; leave it out for no budget")


NO_LIMITS: Final = AccountLimits()
NO_BUDGETS: Final = Budgets()


def with_defaults(own: Allowance, defaults: Allowance) -> Allowance:
    """Return `own`, with the fields that it leaves out taken from `defaults`."""
    pairs = zip(msgspec.structs.astuple(own), msgspec.structs.astuple(defaults), strict=True)
    return type(own)(*(default if value is None else value for value, default in pairs))


class Caller(msgspec.Struct, frozen=True):
    """The authenticated caller: an active account, and the token that it used. Provided by `auth`.

    `account_models` and `token_models` restrict what the group allows: names and `*` patterns, None for no restriction.
    `budgets` and `limits` are the account's own, field by field, else its group's. `token_budgets` and `token_limits` are the
    token's and apply in addition. They count under the token `counts_as`, which the token that was sent has replaced; empty where
    they are its own.
    """

    account: str
    token_id: str
    group: str
    account_models: tuple[str, ...] | None = None
    token_models: tuple[str, ...] | None = None
    limits: AccountLimits = NO_LIMITS
    token_limits: AccountLimits = NO_LIMITS
    budgets: Budgets = NO_BUDGETS
    token_budgets: Budgets = NO_BUDGETS
    counts_as: str = ""


class AskedFor(msgspec.Struct, frozen=True):
    """The account, and the token by its id, for which an operator explains a request without its secret. Only in explanations.

    Without a token, what the account and its group allow is explained. The plugin that provides `Caller` reads it.
    """

    account: str
    token_id: str = ""


class Candidate(msgspec.Struct, frozen=True):
    """A channel that may serve the request, and the model's name there.

    `max_output_tokens`: how many output tokens one choice may have where the caller sets no limit; None for no limit. `cost`: what
    the channel bills for the model, None where it is not known. `credential`: the fingerprint of the only one that may be used, of
    a conversation that it made.
    """

    name: str
    channel: Channel
    model: str
    max_output_tokens: int | None = None
    cost: Price | None = None
    credential: str = ""


class CircuitBreaker:
    """Decides which candidate may be called now, and learns how calls end. This one admits every candidate.

    For each call: `admit`, unless `admit_at_once` returned a candidate; then `answered`, `failed` or `unusable`, any number of
    times; then `left`, once. `wait_s` is called once where no call gave an answer. Only `admit` and `wait_s` may wait. `why_not`
    and `why_not_alone` are for explanations.
    """

    async def why_not(self, candidate: Candidate) -> str:
        """Return why the candidate may not be called now, in words; empty where it may. Takes nothing. Raises `StoreAway`."""
        return ""

    async def why_not_alone(self, candidate: Candidate) -> str:
        """Return why the candidate may not be called where no other may. The same as `why_not`, but for last resorts."""
        return await self.why_not(candidate)

    def admit_at_once(self, candidates: Sequence[Candidate]) -> Candidate | None:
        """Return the first of `candidates` where nothing has to be asked, as nearly always; None where `admit` has to decide."""
        return None

    async def admit(self, candidates: Sequence[Candidate], request_id: str) -> Candidate:
        """Return the first of `candidates`, a non-empty sequence, that may be called.

        Raises `Refused` where none may, and `StoreAway` where the store does not answer.
        """
        return candidates[0]

    def answered(self, candidate: Candidate, request_id: str, after_s: float) -> None:
        """Note that the upstream began its answer, `after_s` after the call."""

    def failed(self, candidate: Candidate, request_id: str, code: str, cool_s: float | None) -> None:
        """Note that the call failed, perhaps because of what the request contains.

        The upstream is not to be called for `cool_s`, None where it did not say so.
        """

    def unusable(self, candidate: Candidate, request_id: str, code: str, cool_s: float | None) -> None:
        """Note that the call failed for a reason that no request can cause, such as a refused connection or credential."""
        self.failed(candidate, request_id, code, cool_s)

    def starting(self, candidate: Candidate) -> None:
        """Note that the upstream loads its model: no failure, but others are preferred."""

    async def wait_s(self, candidates: Sequence[Candidate], asked_s: float) -> float:
        """Return how long the caller is to wait before it retries; 0 for no wait. The upstream asks for `asked_s`."""
        return asked_s

    def left(self, candidate: Candidate, request_id: str) -> None:
        """Note that the call is over, whatever its result."""


class Trace:
    """A fact: the trace that a request is part of (W3C Trace Context). Provided by `otel`.

    Without it, upstreams get the caller's `traceparent` and `tracestate`.
    """

    recorded: bool = False
    """Whether the trace is sent anywhere."""

    def headers(self) -> Mapping[str, str]:
        """Return `traceparent` and `tracestate` for the upstream that is called now: the last of `exchange.attempts`."""
        return {}


class FallbackModel(msgspec.Struct, frozen=True):
    """A model that may serve a request where no channel of the one that was asked for is left.

    `longer`: it may take a prompt that is too long for the other one.
    """

    model: str
    candidates: tuple[Candidate, ...]
    longer: bool


class Route(msgspec.Struct, frozen=True):
    """The candidates, in the order in which they are tried. Provided by `model-routing`, required by the gateway.

    `session`: a digest of the conversation, which stays with one credential of a channel; empty where it may change. `fallbacks`:
    the models that are tried where no candidate is left, in their order.
    """

    candidates: tuple[Candidate, ...]
    breaker: CircuitBreaker = CircuitBreaker()
    session: str = ""
    fallbacks: tuple[FallbackModel, ...] = ()
