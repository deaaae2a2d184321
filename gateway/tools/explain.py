"""A dry run of the chain: each plugin explains what it would do with a request. Nothing is sent, held or counted.

The changes of a plugin to the request are the lines of a difference.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from difflib import unified_diff
from functools import partial
from typing import Any, Final, Literal

import msgspec
from multidict import CIMultiDict

from gateway.base.errors import GatewayError, Refused, as_refused
from gateway.chain.chain import Chain
from gateway.chain.entry import REQUEST_HOOKS, Entry, error_text, is_cancellation
from gateway.chain.request_hooks import RequestHooks
from gateway.chat.request import Body, BodyRules, checked
from gateway.chat.usage import Usage
from gateway.domain.catalogue import MAX_ATTEMPTS
from gateway.domain.exchange import Exchange, Request
from gateway.domain.facts import AskedFor, Candidate, Route
from gateway.operations.form import FORM, written
from gateway.operations.operation import SERVED, Operation

TEXTS: Final = ("messages", "input", "prompt", "query")
CEILINGS: Final = frozenset(("max_tokens", "max_output_tokens"))
MOST_LINES: Final = 200
MOST_CHARACTERS: Final = 400


class ExplainedRefusal(msgspec.Struct, frozen=True):
    """The error that the caller would get. `by` is the plugin that refuses, or empty for the core."""

    by: str
    status: int
    code: str
    message: str


class Decision(msgspec.Struct, frozen=True):
    """The decision of one plugin. `unknown`: it has no `explain`, or a fact that it requires is missing.

    `changes`: the lines of the request that it changes, with `-` as they were, and with `+` as they are for the plugins below.
    """

    plugin: str
    verdict: Literal["passes", "refuses", "unknown"]
    text: str
    changes: list[str] = []


class ChannelChoice(msgspec.Struct, frozen=True):
    """One channel. The order is drawn anew for each request. `spare`: called if the channels before it fail. `fallback`: with
    another model, where no channel of the one that was asked for is left.

    `cost`: what it bills, as far as that is known, for a prompt of the estimated length. `request`: what is special about its
    requests, without secrets.
    """

    channel: str
    model: str
    verdict: Literal["first", "spare", "fallback", "left out"]
    text: str = ""
    cost: dict[str, Any] = {}
    request: str = ""


class Explanation(msgspec.Struct):
    """The decisions of the chain on one request.

    `served`: None if it cannot be known, because no plugin that explains itself chose a channel. `refusal`: the first one.
    `price`: as the plugin that charges gives it.
    """

    served: bool | None = None
    plugins: list[Decision] = []
    channels: list[ChannelChoice] = []
    price: dict[str, Any] = {}
    refusal: ExplainedRefusal | None = None


def sample_of(operation: Operation, model: str, text: str, max_tokens: int | None) -> bytes:
    """Return a small request of an operation, with a text and a ceiling as far as it has any."""
    wire = SERVED[operation]
    body = wire.sample(model, "max_tokens")
    for said in list(filter(body.__contains__, TEXTS))[:1]:
        body[said] = [{"role": "user", "content": text}] if said == "messages" else text
    for name in CEILINGS.intersection(body):
        if max_tokens is not None:
            body[name] = max_tokens
        elif operation is not Operation.MESSAGES:  # which needs one
            del body[name]
    return written(body) if wire.accepts == FORM else json.dumps(body).encode()


async def explain(
    chain: Chain,
    headers: Sequence[tuple[str, str]],
    body: bytes,
    rules: BodyRules,
    peer: str,
    asked: AskedFor | None = None,
    operation: Operation = Operation.CHAT,
) -> Explanation:
    """Return what a started chain would do with a request of an operation of upstreams. Raises `StoreAway`.

    An earlier answer that it names is not looked up. `asked`: the account or the token for which it is, in place of a header with a
    secret.
    """
    wire = SERVED[operation]

    async def check(raw: bytes) -> Body:
        found = checked(wire.check(raw, rules))
        return msgspec.structs.replace(found, model=rules.aliases.get(found.model, found.model))

    request = Request("POST", f"/v1{wire.path}", CIMultiDict(headers), peer, operation)
    exchange = Exchange(request, partial(check, body), generation=chain.generation)
    exchange.check_body = check
    if asked is not None:
        exchange[AskedFor] = asked
    explanation = Explanation()
    for entry in chain.entries:
        try:
            explanation.plugins.append(await _decision(entry, exchange))
        except BaseException as error:
            if is_cancellation(error) or (isinstance(error, GatewayError) and not isinstance(error, Refused)):
                raise
            refused = as_refused(error)
            message = refused.message or f"the plugin fails with {error_text(error)}"
            explanation.plugins.append(Decision(entry.name, "refuses", f"{refused.status} {refused.code}: {message}"))
            explanation.refusal = explanation.refusal or ExplainedRefusal(
                entry.name, refused.status, refused.code, message
            )
    explanation.price = exchange.price
    if (route := exchange.get(Route)) is not None:
        usage = Usage((await exchange.body()).prompt_tokens_estimate, 0, "estimated", answers=1)
        explanation.channels = [*await _choices(route, usage), *_fallbacks(route, usage)]
        explanation.served = any(choice.verdict in ("first", "fallback") for choice in explanation.channels)
        if not explanation.served and explanation.refusal is None:
            explanation.refusal = ExplainedRefusal(
                "", 503, "model_unavailable", "No channel can serve this model at the moment."
            )
    if explanation.refusal is not None:
        explanation.served = False
    return explanation


async def _decision(entry: Entry, exchange: Exchange) -> Decision:
    if missing := [fact.__name__ for fact in entry.plugin.requires if fact not in exchange]:
        return Decision(entry.name, "unknown", f"needs {', '.join(missing)}, which nothing above it provided")
    if not entry.defines(*REQUEST_HOOKS):
        return Decision(entry.name, "passes", "has no part in the decision")
    before = (await exchange.body()).top if entry.plugin.edits else {}
    exchange.hooks = RequestHooks(exchange, (), [entry])
    try:
        text = await entry.plugin.explain(exchange)
    except BaseException as error:
        if is_cancellation(error) or entry.on_error == "refuse" or isinstance(error, GatewayError):
            raise
        return Decision(entry.name, "passes", f"fails with {type(error).__name__}, which is ignored")
    if text is None:
        return Decision(entry.name, "unknown", "does not explain itself: it has no `explain`")
    changes = differences(before, (await exchange.body()).top) if entry.plugin.edits else []
    return Decision(entry.name, "passes", text, changes)


async def _choices(route: Route, asked: Usage) -> list[ChannelChoice]:
    """Return the channels in the order in which failover tries them: no channel twice, and only available ones."""
    choices: list[ChannelChoice] = []
    available: set[str] = set()
    for candidate in route.candidates:
        why_not = await route.breaker.why_not(candidate)
        if not why_not and (candidate.name in available or len(available) == MAX_ATTEMPTS):
            why_not = (
                "is listed above already"
                if candidate.name in available
                else f"{MAX_ATTEMPTS} others are tried before it"
            )
        verdict: Literal["first", "spare", "left out"] = "left out" if why_not else "spare" if available else "first"
        choices.append(_choice(candidate, verdict, why_not, asked))
        if not why_not:
            available.add(candidate.name)
    return choices if available else await _last_resorts(route, choices)


def _fallbacks(route: Route, asked: Usage) -> list[ChannelChoice]:
    """Return the channels of the models to which the request falls back, in their order."""
    return [
        _choice(candidate, "fallback", f"as {other.model}, at its price, where no channel above is left", asked)
        for other in route.fallbacks
        for candidate in other.candidates
    ]


def _choice(
    candidate: Candidate, verdict: Literal["first", "spare", "fallback", "left out"], text: str, asked: Usage
) -> ChannelChoice:
    cost = {} if candidate.cost is None else candidate.cost.record(asked)
    return ChannelChoice(candidate.name, candidate.model, verdict, text, cost, candidate.channel.request_in_words)


async def _last_resorts(route: Route, choices: list[ChannelChoice]) -> list[ChannelChoice]:
    """Return the choices, none of which is available, with the channels that are called for want of another."""
    verdict: Literal["first", "spare"] = "first"
    for index, candidate in enumerate(route.candidates):
        if not await route.breaker.why_not_alone(candidate):
            text = f"called although it is {choices[index].text}: no other can serve"
            choices[index] = msgspec.structs.replace(choices[index], verdict=verdict, text=text)
            verdict = "spare"
    return choices


def differences(before: Mapping[str, msgspec.Raw], after: Mapping[str, msgspec.Raw]) -> list[str]:
    """Return the lines that differ between two bodies: `-` for what was, `+` for what is. Long lines are cut, and many left out."""
    lines = list(_changes(before, after))
    left_out = [f"  ({len(lines) - MOST_LINES} more lines)"] if len(lines) > MOST_LINES else []
    return [line[:MOST_CHARACTERS] + "..." * (len(line) > MOST_CHARACTERS) for line in lines[:MOST_LINES]] + left_out


def _changes(before: Mapping[str, msgspec.Raw], after: Mapping[str, msgspec.Raw]) -> Iterator[str]:
    for name in {**before, **after}:
        if before.get(name) == after.get(name):
            continue
        compared = unified_diff(_lines(name, before), _lines(name, after), n=0, lineterm="")
        yield from (line for line in compared if not line.startswith(("---", "+++", "@@")))


def _lines(name: str, body: Mapping[str, msgspec.Raw]) -> list[str]:
    """Return a field as lines of JSON, indented; none where the body does not have it."""
    if name not in body:
        return []
    text = msgspec.json.format(bytes(body[name]), indent=2).decode()
    return f"{name}: {text}".splitlines()
