"""The body of a request to an upstream of another dialect."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import msgspec

from gateway.chat.dialect import ChatRequest, unsupported
from gateway.chat.fields import CEILINGS
from gateway.chat.fixed_fields import FixedFields
from gateway.chat.request import SMALL_BYTES, Body, BodyPart
from gateway.facts import Candidate
from gateway.proxy.dialect_calls import DialectCalls

DEFAULT_MAX_TOKENS: Final = 4096
"""What is sent where neither the caller nor the model has a limit: other APIs require one."""
_OWN: Final = frozenset(("model", "stream", "stream_options", "n", *CEILINGS))
_thread: Final = ThreadPoolExecutor(1, "dialect")
_top: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


def foreign_chat(body: Body, model: str, max_tokens: int, fixed: FixedFields | None = None) -> ChatRequest:
    """Return what a dialect writes anew, without what the channel drops or sets. Raises `Refused` for what no dialect can say."""
    if body.n > 1:
        raise unsupported("n", "'n' must be 1 for this model: its upstream gives one answer.")
    fields = {name: value for name, value in body.top.items() if name not in _OWN}
    if fixed is not None:
        fields = {name: value for name, value in fields.items() if not fixed.replaces(name)}
    return ChatRequest(model, body.max_tokens or max_tokens, fields)


async def foreign_parts(calls: DialectCalls, body: Body, candidate: Candidate) -> list[BodyPart]:
    """Return the body to send. Raises `Refused` for a request that cannot be said in the dialect, and `DialectFailed`.

    A large one is written in a thread, one at a time: several would keep the interpreter from the event loop for longer.
    """
    ceiling = candidate.max_output_tokens or DEFAULT_MAX_TOKENS
    fixed = candidate.channel.fields
    chat = foreign_chat(body, candidate.model, ceiling, fixed)
    if body.size <= SMALL_BYTES:
        return [_written(calls, chat, fixed)]
    return [await asyncio.get_running_loop().run_in_executor(_thread, _written, calls, chat, fixed)]


def _written(calls: DialectCalls, chat: ChatRequest, fixed: FixedFields | None) -> bytes:
    text = calls.request(chat)
    if fixed is None:
        return text
    top = _top.decode(text)
    fixed.apply(top)
    return msgspec.json.encode(top)
