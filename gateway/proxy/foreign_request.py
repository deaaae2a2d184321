"""The body of a request to an upstream of another dialect."""

from __future__ import annotations

from typing import Final

import msgspec

from gateway.chat.dialect import ChatRequest, Dialect, unsupported
from gateway.chat.fields import CEILINGS
from gateway.chat.request import Body, BodyPart
from gateway.facts import Candidate

DEFAULT_MAX_TOKENS: Final = 4096
"""What is sent where neither the caller nor the model has a limit: other APIs require one."""
_OWN: Final = frozenset(("model", "stream", "stream_options", "n", *CEILINGS))
_top: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


def foreign_chat(body: Body, model: str, max_tokens: int) -> ChatRequest:
    """Return what a dialect writes anew. Raises `Refused` for what no dialect can say."""
    if body.n > 1:
        raise unsupported("n", "'n' must be 1 for this model: its upstream gives one answer.")
    fields = {name: value for name, value in body.top.items() if name not in _OWN}
    return ChatRequest(model, body.max_tokens or max_tokens, fields)


def foreign_parts(dialect: Dialect, body: Body, candidate: Candidate) -> list[BodyPart]:
    """Return the body to send. Raises `Refused` for a request that cannot be said in the dialect."""
    ceiling = candidate.max_output_tokens or DEFAULT_MAX_TOKENS
    text = dialect.request(foreign_chat(body, candidate.model, ceiling))
    fixed = candidate.channel.fields
    if fixed is None:
        return [text]
    top = _top.decode(text)
    fixed.apply(top)
    return [msgspec.json.encode(top)]
