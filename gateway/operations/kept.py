"""Kept answers: what an upstream keeps of a response, named by a later request by its id. Sans-I/O.

An id is known to the account whose request made it, with the channel and the credential that did (`gateway.store.kept_ids`). To
anybody else there is none. The answer that it names becomes part of the prompt, although the body does not show it: its tokens are
those that the upstream told. Where they are not known, or another model is asked, the prompt may be as long as the model allows: of
an answer whose upstream may have left out a part of the conversation (`truncation`), which the next one may read again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from gateway.base.errors import Refused
from gateway.chat.prompt import MESSAGE_ALLOWANCE
from gateway.operations.wire_format import CheckedBody

TRUNCATION: Final = "truncation"
"""The field that lets an upstream leave out a part of the conversation."""


class KeptId(msgspec.Struct, frozen=True, array_like=True):
    """An id of an answer, or of an item of it, that an upstream keeps. `credential`: the fingerprint of the one that made it.

    `answer`: the id of the answer that it is, or is a part of. `tokens`: the most that it adds to a prompt, where the upstream
    `told` them, else an estimate.
    """

    channel: str
    credential: str
    model: str
    answer: str
    tokens: int = 0
    told: bool = False


def with_kept(body: CheckedBody, found: Mapping[str, KeptId], context_length: int | None) -> CheckedBody:
    """Return the body with what the ids that it names add to its prompt. `found`: those that the caller may use.

    Raises `Refused` for another id, for ids of several upstreams, and for a prompt that has no bound.
    """
    for name in body.refers:
        if name not in found:
            raise unknown(name, "previous_response_id" if name == body.refers[0] and body.goes_on else "input")
    kept = [found[name] for name in body.refers]
    if len({(each.channel, each.credential) for each in kept}) > 1:
        text = "The ids in this request are kept by different upstreams. Send the whole conversation as 'input'."
        raise Refused(400, "invalid_request", text, param="input")
    tokens = _added(kept)
    if all(each.told and each.model == body.model for each in kept):
        bound = body.prompt_bound.text + tokens + MESSAGE_ALLOWANCE * len(kept)
    elif context_length is not None:
        bound = max(body.prompt_bound.text, context_length)
    else:
        text = "The length of the conversation that is kept is not known. Send the whole conversation as 'input'"
        raise Refused(400, "not_served", f"{text}, or have the operator set the model's `context_length`.")
    return msgspec.structs.replace(
        body,
        prompt_tokens_estimate=body.prompt_tokens_estimate + tokens,
        prompt_bound=msgspec.structs.replace(body.prompt_bound, text=bound),
        kept_by=(kept[0].channel, kept[0].credential),
    )


def unknown(name: str, param: str | None = None) -> Refused:
    """Return the error for an id that the caller may not name, whoever else has it."""
    shown = f" '{name}'" if name.isascii() and name.isprintable() and len(name) <= 128 else ""
    text = f"There is no answer or item{shown} that you may name. Send the whole conversation as 'input'."
    return Refused(404, "response_not_found", text, param=param)


def gone() -> Refused:
    """Return the error for an id whose upstream, or credential there, is not in the configuration any more."""
    text = "The upstream that keeps this conversation is not available. Send the whole conversation as 'input'."
    return Refused(503, "model_unavailable", text, should_retry=False)


def _added(kept: Iterable[KeptId]) -> int:
    """Return the tokens of all answers that are named, each once: an item is a part of its answer."""
    most: dict[str, int] = {}
    for each in kept:
        most[each.answer] = max(each.tokens, most.get(each.answer, 0))
    return sum(most.values())
