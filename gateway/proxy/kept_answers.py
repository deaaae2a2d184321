"""Kept answers: what an upstream keeps of a response, with the channel and credential that made it.

`Keeper` remembers the ids of an answer: its own with its first byte, since the caller may name it from then on, and those of its
items at the end, with their tokens. Where the store is away, an answer reaches its caller all the same, and cannot be named
later. `of_one_upstream` and `ask` go back to the channel and the credential that made what a request names, and to no others.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec
from aiohttp import ClientError

from gateway.base.errors import GatewayError
from gateway.base.log import log
from gateway.chat.request import Body
from gateway.chat.usage import Usage
from gateway.config.channel import Channel
from gateway.domain.facts import Candidate
from gateway.operations.kept import KeptId, gone
from gateway.operations.wire_format import CheckedBody, WireFormat
from gateway.proxy import failure
from gateway.proxy.failure import read_body
from gateway.proxy.pool import UpstreamPool
from gateway.proxy.upstream import UpstreamConnection
from gateway.store.channels import fingerprint_of
from gateway.store.kept_ids import KeptIds

MOST_BYTES: Final = 16 * 1024 * 1024
"""Of what is kept of one answer, when it is read again."""


class Keeper:
    """The ids of one answer, for the account that asked for it. `origin`: its channel, credential and model.

    `truncates`: the upstream may have left out a part of the conversation, of which it tells no tokens.
    """

    def __init__(self, ids: KeptIds, account: str, origin: tuple[str, str, str], *, truncates: bool) -> None:
        self._ids = ids
        self._account = account
        self._origin = origin
        self._truncates = truncates

    def begin(self, name: str) -> None:
        """Remember the id of an answer that begins."""
        if name:
            self._ids.remember(self._account, {name: self._part(name)}).add_done_callback(_note)

    async def end(self, name: str, items: Sequence[str], usage: Usage) -> None:
        """Remember the ids of an answer and of its items, with the tokens that they add to a later prompt."""
        if not name:
            return
        told = usage.source == "upstream"
        item = self._part(name, usage.completion_tokens, told)
        whole = self._part(name, usage.prompt_tokens + usage.completion_tokens, told and not self._truncates)
        written = self._ids.remember(self._account, {**dict.fromkeys(items, item), name: whole})
        with suppress(GatewayError):
            written.add_done_callback(_note)
            await written

    def _part(self, answer: str, tokens: int = 0, told: bool = False) -> KeptId:
        return KeptId(*self._origin, answer, tokens, told)


def _note(written: asyncio.Future[Any]) -> None:
    if not written.cancelled() and (error := written.exception()) is not None:
        log.warning("answer_not_remembered", reason=str(error))


def of_one_upstream(body: Body, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidate that keeps what a body names, for its credential alone; all of them where it names nothing.

    Raises `Refused` where there is none.
    """
    if not isinstance(body, CheckedBody) or not body.refers:
        return list(candidates)
    channel, credential = body.kept_by or ("", "")
    for each in candidates:
        if each.name == channel and credential_of(each.channel, credential) is not None:
            return [msgspec.structs.replace(each, credential=credential)]
    raise gone()


def credential_of(channel: Channel, fingerprint: str) -> str | None:
    """Return the credential of a channel that has a fingerprint; None where it has none such."""
    return next((each for each in channel.credentials or ("",) if fingerprint_of(each) == fingerprint), None)


async def ask(
    pool: UpstreamPool, channels: Mapping[str, Channel], generation: int, kept: KeptId, wire: WireFormat
) -> bytes:
    """Return what an upstream answers to a request about what it keeps. Raises `Refused`."""
    channel = channels.get(kept.channel)
    credential = None if channel is None else credential_of(channel, kept.credential)
    if channel is None or credential is None:
        raise gone()
    endpoint, began = pool.endpoint(channel, generation), time.monotonic()
    try:
        async with asyncio.timeout(channel.timers.first_byte):
            upstream, _ = await endpoint.open(fresh=True)
    except (TimeoutError, ClientError, OSError):
        raise failure.unreachable().error from None
    try:
        head: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def on_head(answer: UpstreamConnection) -> None:
            answer.pause()
            if not head.done():
                head.set_result(None)

        upstream.on_head = on_head
        upstream.send([endpoint.bodyless(wire, credential)])
        await asyncio.wait((head,), timeout=channel.timers.first_byte)
        if not head.done():
            raise failure.timed_out().error
        if upstream.failure is not None:
            raise failure.dropped().error
        never: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        left_s = max(0.0, began + channel.timers.total - time.monotonic())
        read = await read_body(upstream, min(MOST_BYTES, channel.max_response_bytes), left_s, never)
        if upstream.status != 200:
            text = b"" if upstream.encoded else read.data
            raise failure.of_answer(upstream.status, upstream.headers, text, channel.scrubbed).error
        if not read.whole or upstream.media_type != "application/json":
            raise failure.too_large().error if read.long else failure.invalid_response("JSON").error
        return failure.scrubbed_bytes(read.data, channel.scrubbed)
    finally:
        upstream.release()
