"""One small request to a channel's upstream, as an operator asks for it: past the chain, so that nothing is charged or recorded."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple

import msgspec
from aiohttp import ClientError, ClientResponse, ClientSession, ClientTimeout
from yarl import URL

from gateway.base.errors import GatewayError
from gateway.chat import upstream_errors
from gateway.chat.dialect import ChatRequest, Dialect
from gateway.config.channel import Channel
from gateway.config.schema import NAME
from gateway.operations.chat_completions import SAMPLE_TOKENS
from gateway.operations.form import FORM, written
from gateway.operations.operation import SERVED, Operation
from gateway.operations.wire_format import WireFormat
from gateway.proxy.failure import of_answer, scrubbed
from gateway.proxy.pool import address_of, headers_and_query
from gateway.proxy.relay import SSE

MAX_LIST: Final = 4 * 1024 * 1024
"""Bytes of a list of models, at most."""
BOUNDARY: Final = "sluicegate"
MAX_BYTES: Final = 64 * 1024
"""Of an answer, how much is read."""

MOST_SHOWN: Final = 200
"""Characters of a text from outside that are shown."""


class Verdict(msgspec.Struct, frozen=True):
    """How the upstream answered. `status`: None where no answer came. `text` has nothing of a credential."""

    good: bool
    status: int | None
    took_ms: int
    text: str


class ChannelCall(NamedTuple):
    """What is tried: a channel, the model's name there, one of the channel's credentials, if it has any, and its dialect."""

    channel: Channel
    model: str
    credential: str
    dialect: Dialect | None = None

    @property
    def streams(self) -> Sequence[str]:
        """Return the types of a response that is a stream."""
        return SSE if self.dialect is None else self.dialect.streams

    @property
    def wire(self) -> WireFormat:
        """Return the format of the channel's first operation, by which it is tried."""
        return SERVED[Operation(self.channel.operations[0])]


async def try_channel(call: ChannelCall) -> Verdict:
    """Send one request with the channel's own address, proxy, authorities and time limits, and return how it was answered."""
    channel, dialect, began = call.channel, call.dialect, time.monotonic()
    headers, query = headers_and_query(channel, dialect, call.wire, call.credential)
    headers["Accept"] = call.streams[0] if "stream" in call.wire.sample("", "") else call.wire.accept
    if call.wire.accepts == FORM:
        headers["Content-Type"] = f"{FORM}; boundary={BOUNDARY}"
    address, status = address_of(channel, dialect, call.wire), None
    try:
        async with _asked(channel, "POST", address, params=query, data=_body(call), headers=headers) as response:
            status = response.status
            good, text = _judged(response, await _beginning(response, call), call)
    except TimeoutError:
        good, text = False, "it did not answer in time, see `timers`"
    except (ClientError, OSError, ValueError) as error:
        good, text = False, f"it cannot be reached: {error}" if status is None else "it broke off its answer"
    took_ms = round((time.monotonic() - began) * 1000)
    return Verdict(good, status, took_ms, shown(scrubbed(text, channel.scrubbed)))


class UpstreamModel(msgspec.Struct, frozen=True):
    """A model that an upstream serves, by its name there. `context_length`: None where the upstream does not say it."""

    name: str
    context_length: int | None = None


async def list_models(channel: Channel) -> list[UpstreamModel]:
    """Ask a channel's upstream which models it serves, which costs nothing. Raises `GatewayError` with what it says instead."""
    headers, query = headers_and_query(channel, None, SERVED[Operation.CHAT], (*channel.credentials, "")[0])
    address = f"{channel.base_url.rstrip('/')}/models"
    try:
        async with _asked(channel, "GET", address, params=query, headers=headers) as response:
            body = await response.content.read(MAX_LIST)
            status = response.status
    except TimeoutError:
        raise GatewayError("the upstream did not answer in time, see `timers`") from None
    except (ClientError, OSError, ValueError) as error:
        raise GatewayError(f"the upstream cannot be reached: {shown(scrubbed(str(error), channel.scrubbed))}") from None
    found = list(_models_in(upstream_errors.decode(body))) if status == 200 else []
    if not found:
        said = upstream_errors.details(upstream_errors.decode(body)).get("message", "no list of models")
        raise GatewayError(f"the upstream answered with {status}: {shown(scrubbed(said, channel.scrubbed))}")
    return found


@asynccontextmanager
async def _asked(channel: Channel, method: str, address: URL | str, **given: Any) -> AsyncIterator[ClientResponse]:
    """Send a request with the channel's own proxy, authorities and time limits."""
    connect_s = channel.timers.connect
    timeout = ClientTimeout(connect=connect_s, total=connect_s + channel.timers.first_byte)
    given |= {"proxy": channel.proxy or None, "ssl": channel.trust.context if channel.trust else True}
    async with (
        ClientSession(timeout=timeout) as session,
        session.request(method, address, allow_redirects=False, **given) as response,
    ):
        yield response


def _models_in(value: Any) -> Iterator[UpstreamModel]:
    """Yield the models of a list, in the fields of OpenAI, vLLM, OpenRouter, Groq and llama.cpp."""
    data = value.get("data") if isinstance(value, dict) else None
    for each in data if isinstance(data, list) else ():
        if not (isinstance(each, dict) and isinstance(each.get("id"), str) and NAME.fullmatch(each["id"])):
            continue
        meta = each.get("meta")
        lengths = [each.get(name) for name in ("max_model_len", "context_length", "context_window")]
        lengths += [meta.get(name) for name in ("n_ctx", "n_ctx_train")] if isinstance(meta, dict) else []
        yield UpstreamModel(
            each["id"], next((length for length in lengths if type(length) is int and length > 0), None)
        )


def _body(call: ChannelCall) -> bytes:
    """Return a request in the terms of the upstream."""
    sent = call.wire.sample(call.model, call.channel.ceiling_name)
    if call.wire.accepts == FORM:
        return written(sent, BOUNDARY)
    if call.dialect is not None:
        messages = {"messages": msgspec.Raw(msgspec.json.encode(sent["messages"]))}
        sent = msgspec.json.decode(call.dialect.request(ChatRequest(call.model, SAMPLE_TOKENS, messages)))
    raw = {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in sent.items()}
    if call.channel.fields is not None:
        call.channel.fields.apply(raw)
    return msgspec.json.encode(raw)


def _judged(response: ClientResponse, body: bytes, call: ChannelCall) -> tuple[bool, str]:
    """Return whether an answer is one that the gateway passes on, and a sentence about it."""
    status = response.status
    if call.dialect is not None and status != 200:
        status, body = call.dialect.error(status, body)
    detail = upstream_errors.details(upstream_errors.decode(body))
    if response.status == 200 and response.content_type in call.streams:
        return True, "it streams"
    if response.status == 200 and "stream" not in call.wire.sample("", "") and call.wire.read(body) is not None:
        return True, f"it answers with {call.wire.answer}"
    if response.status == 200:
        return False, f"its answer is not an event stream, but {response.content_type or 'of no type'}"
    failure = of_answer(status, response.headers, body, call.channel.scrubbed)
    return False, detail.get("message") or failure.error.message


async def _beginning(response: ClientResponse, call: ChannelCall) -> bytes:
    """Return the first event of a stream, or of another answer what fits."""
    if response.content_type in call.streams:
        return await response.content.readline()
    body = b""
    async for piece in response.content.iter_any():
        body += piece
        if len(body) > MAX_BYTES:
            break
    return body[:MAX_BYTES]


def shown(text: str, most: int = MOST_SHOWN) -> str:
    """Return a text from outside as it may be printed: without control characters, and not too long."""
    short = text if len(text) <= most else f"{text[:most]}..."
    return "".join(character if character.isprintable() else "?" for character in short)
