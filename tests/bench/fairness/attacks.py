"""What the first caller does, one function for each row of the table. Each goes on until it is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from tests.bench.fairness.calls import Target, asking, flood, holding, many, reading, sending
from tests.whole.raw import chat, get, head

MIB: Final = 1024 * 1024
WRONG_TOKEN: Final = "sk-hostile0-0000000000000000000000000000000000000000"
ATTACKS: Final[dict[str, Callable[[Target], Awaitable[None]]]] = {}
"""The attacks by their names."""

Attack = Callable[[Target], Awaitable[None]]


def attack(run: Attack) -> Attack:
    """Register an attack under its name in words."""
    ATTACKS[run.__name__.replace("_", "-")] = run
    return run


def answered_with(plan: str) -> Attack:
    """Return an attack whose requests the upstream answers by `plan`, some hundred a second."""

    async def run(target: Target) -> None:
        await flood(target, 4, lambda: target.chat(plan), 0.02)

    return run


for _plan in ("flagged", "error-event", "broken", "too-large", "limited"):
    ATTACKS[_plan] = answered_with(_plan)
ATTACKS["credentials"] = answered_with("flagged")


@attack
async def other_model(target: Target) -> None:
    """Be rate limited by the upstream for another model of the channel."""
    await flood(target, 4, lambda: target.chat("limited", model="other"), 0.02)


@attack
async def probe(target: Target) -> None:
    """Make the channel fail, and take each probe of it with a request that is never answered."""
    async with asyncio.TaskGroup() as group:
        group.create_task(flood(target, 2, lambda: target.chat("broken"), 0.05))
        group.create_task(many(target, 4, asking(target, lambda: target.chat("silent")), 0.05))


@attack
async def body_budget(target: Target) -> None:
    """Send the largest bodies, and keep their streams open."""
    await many(
        target, 40, reading(target, lambda: target.chat("slow", model="apart", metadata={"a": "x" * (8 * MIB - 4096)}))
    )


@attack
async def half_bodies(target: Target) -> None:
    """Declare large bodies, which together take all memory to the last byte, and send them as slowly as is allowed."""

    def begin() -> bytes:
        return declared(target, 8 * MIB >> target.turn % 10)

    await many(target, 40, holding(target, begin, then=b"{" * 1000, pause_s=0.02))


@attack
async def kept_bodies(target: Target) -> None:
    """Send most of the largest bodies at once, and the rest as slowly as is allowed."""
    most = b"{" * (8 * MIB - 64 * 1024)
    await many(target, 40, holding(target, lambda: declared(target, 8 * MIB) + most, then=b"{" * 1000, pause_s=0.02))


def declared(target: Target, size: int) -> bytes:
    """Return the head of a request whose body has `size` bytes."""
    lines = {"Host": "gateway", "Content-Type": "application/json", "Content-Length": str(size)}
    return head("POST", "/v1/chat/completions", lines | {"Authorization": f"Bearer {target.token}"})


@attack
async def half_heads(target: Target) -> None:
    """Send heads of 60 KiB without their end, on 2,000 connections, without a token."""
    half = b"GET /v1/models HTTP/1.1\r\nX-A: " + b"x" * 60_000
    await many(target, 2000, holding(target, lambda: half))


@attack
async def idle(target: Target) -> None:
    """Open 2,000 connections and send nothing."""
    await many(target, 2000, holding(target, lambda: b""))


@attack
async def connections(target: Target) -> None:
    """Open and close connections."""

    async def once() -> str:
        _, writer = await target.connect()
        writer.close()
        return "opened"

    await many(target, 64, once)


@attack
async def wrong_tokens(target: Target) -> None:
    """Send requests with a wrong token."""
    await flood(target, 64, lambda: chat(WRONG_TOKEN))


@attack
async def no_token(target: Target) -> None:
    """Send requests without a token."""
    await flood(target, 64, lambda: chat(None))


@attack
async def health(target: Target) -> None:
    """Ask whether the gateway is ready."""
    await flood(target, 64, lambda: get("/readyz"))


@attack
async def refused(target: Target) -> None:
    """Send chat requests far beyond the account's limit of requests."""
    await flood(target, 64, lambda: target.chat("words"))


@attack
async def refused_on_many(target: Target) -> None:
    """Send chat requests far beyond the account's limit, on 500 connections."""
    await flood(target, 500, lambda: target.chat("words"))


@attack
async def models(target: Target) -> None:
    """Ask for the models."""
    await flood(target, 64, lambda: get("/v1/models", target.token))


@attack
async def lookups(target: Target) -> None:
    """Ask for the record of an old request that is not there, beside a flood that fills the stream of the usage log."""
    old = "01890000-0000-7000-8000-000000000000"
    async with asyncio.TaskGroup() as group:
        group.create_task(flood(target, 16, lambda: get("/v1/models", target.token)))
        group.create_task(flood(target, 16, lambda: get(f"/v1/requests/{old}", target.token)))


@attack
async def holds(target: Target) -> None:
    """Hold money with as many streams as are allowed."""
    await many(target, 300, reading(target, lambda: target.chat("slow", model="apart")), 0.1)


@attack
async def streams(target: Target) -> None:
    """Keep paced streams open, and read them."""
    await many(target, 100, reading(target, lambda: target.chat("small", model="apart")), 0.1)


@attack
async def tiny_events(target: Target) -> None:
    """Read streams of tiny events, which the upstream sends as fast as it can."""
    await many(target, 8, reading(target, lambda: target.chat("tiny", model="apart")), 0.1)


@attack
async def large_events(target: Target) -> None:
    """Read streams of large events, which the upstream sends as fast as it can."""
    await many(target, 8, reading(target, lambda: target.chat("flood", model="apart")), 0.1)


@attack
async def slow_readers(target: Target) -> None:
    """Open streams of large events, and read nothing."""
    await many(target, 100, holding(target, lambda: target.chat("flood", model="apart")))


@attack
async def large_json(target: Target) -> None:
    """Send bodies of 8 MiB with a million short values."""
    parts = ",".join(["[0]"] * (8 * MIB // 4 - 300))
    body = (
        b'{"model":"apart","stream":true,"messages":[{"role":"user","content":"hi"}],"metadata":[%b]}' % parts.encode()
    )
    await many(target, 4, sending(target, {"Content-Length": str(len(body))}, body, MIB))


@attack
async def deep_json(target: Target) -> None:
    """Send bodies of 8 MiB that are nested a million levels deep."""
    body = b'{"model":"apart","stream":true,"messages":' + b"[" * (8 * MIB - 1000)
    await many(target, 4, sending(target, {"Content-Length": str(len(body))}, body, MIB))


@attack
async def large_prompts(target: Target) -> None:
    """Send prompts of 8 MiB, which the upstream answers."""
    message = b'{"role":"user","content":"' + b"word " * (8 * MIB // 5 - 300) + b'"}'
    body = b'{"model":"apart","stream":true,"messages":[%b]}' % message
    await many(target, 4, sending(target, {"Content-Length": str(len(body))}, body, MIB))


@attack
async def tiny_chunks(target: Target) -> None:
    """Send bodies in chunks of one byte."""
    body = chat(None, {"model": "apart", "user": "words", "metadata": {"a": "x" * 100_000}}).partition(b"\r\n\r\n")[2]
    chunked = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    await many(target, 8, sending(target, {"Transfer-Encoding": "chunked"}, chunked, 64 * 1024))


@attack
async def pipelining(target: Target) -> None:
    """Send thousands of requests at once on a connection."""
    request = get("/v1/models", target.token)

    async def once() -> str:
        reader, writer = await target.connect()
        try:
            writer.write(request * 2000)
            read = 0
            while data := await reader.read(64 * 1024):
                read += data.count(b"HTTP/1.1 ")
                target.tally["answers"] += data.count(b"HTTP/1.1 ")
                if read >= 2000:
                    break
            return "batches"
        finally:
            writer.close()

    await many(target, 4, once)


@attack
async def leaving(target: Target) -> None:
    """Begin streams and leave at the first event, so that each needs a connection to the upstream."""

    async def once() -> str:
        reader, writer = await target.connect()
        try:
            writer.write(target.chat("slow", model="apart"))
            return (await reader.readuntil(b"\r\n\r\n"))[9:12].decode()
        finally:
            writer.transport.abort()

    await many(target, 32, once)


@attack
async def unreachable(target: Target) -> None:
    """Ask for a model whose upstream cannot be reached."""
    await flood(target, 8, lambda: target.chat("words", model="unreachable"))


@attack
async def channel_slots(target: Target) -> None:
    """Take as many of a channel's concurrent calls as the account may."""
    await many(target, 64, reading(target, lambda: target.chat("slow", model="few")), 0.1)


@attack
async def elsewhere(target: Target) -> None:
    """Keep the machine busy with requests that do not go to the gateway."""
    target.port = target.apart
    await flood(target, 64, lambda: target.chat("words"))


@attack
async def nothing(target: Target) -> None:
    """Do nothing: what the machine alone changes."""
    await asyncio.Event().wait()
