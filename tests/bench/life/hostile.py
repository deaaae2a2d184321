"""Callers that do something wrong: leave, do not read, send half of it, have no right or no money, or too much at once."""

from __future__ import annotations

import asyncio
import random
from typing import Final

from tests.bench.life.callers import SOUND, Caller, ask
from tests.bench.life.seen import Saw
from tests.bench.life.wire import Line, close_quietly, request
from tests.bench.life.world import World, body_of
from tests.whole.hostile_requests import GROUPS

CASES: Final = [
    case for cases in GROUPS.values() for case in cases if len(case.sent) < 50_000 and b"Expect: 100" not in case.sent
]
EXACT_PRICE: Final = 1000
"""Of the model `exact`, in micros for each token of output; its input is free, so that a hold is what the request costs."""
EXACT_WORDS: Final = 10
AT_ONCE: Final = 6


async def leaves_early(world: World, chance: random.Random) -> None:
    """Leave by FIN or RST right after the request, before there is an answer."""
    seen = world.begin("leaves early", chance.choice(("words", "thinks-unseen", "silent")), honest=False)
    line = Line(world.port)
    try:
        await line.open()
        line.writer.write(request(world.tokens["main"], body_of(seen, chance, pace=0.05)))
        await asyncio.sleep(chance.choice((0, 0.002, 0.02, 0.3)))
        line.close(reset=chance.random() < 0.5)
    except OSError:
        pass
    seen.saw = Saw.LEFT
    world.end(seen)


async def leaves_midway(world: World, chance: random.Random) -> None:
    """Leave by FIN or RST after some events."""
    models = ("words", "stalls", "logprobs", "huge-event", "thinks-unseen", "thinks-openly")
    seen = world.begin("leaves midway", chance.choice(models), honest=False)
    some = chance.randint(1, 8)
    body = body_of(seen, chance, pace=0.03, words=30)
    await ask(world, seen, body, stop=lambda seen: seen.events >= some, reset=chance.random() < 0.5)


async def leaves_at_finish(world: World, chance: random.Random) -> None:
    """Leave as soon as the finish reason is there, before the usage."""
    seen = world.begin("leaves at finish", chance.choice(("words", "usage-beside", "thinks-unseen")), honest=False)
    body = body_of(seen, chance, late=chance.choice((0, 0.15, 0.5)))
    await ask(world, seen, body, stop=lambda seen: seen.finish, reset=chance.random() < 0.5)


async def never_reads(world: World, chance: random.Random) -> None:
    """Ask for much and read nothing, until the gateway ends it."""
    seen = world.begin("never reads", "endless", honest=False)
    line = Line(world.port, receive_buffer=4096)
    try:
        await line.open()
        line.writer.write(request(world.tokens["main"], body_of(seen, chance)))
        await asyncio.sleep(8)
    except OSError:
        pass
    finally:
        seen.saw = Saw.LEFT
        world.end(seen)
        close_quietly(line)


async def sends_half(world: World, chance: random.Random) -> None:
    """Send half a head or half a body; then leave, or wait for the gateway to end it."""
    seen = world.begin("sends half", "words", honest=False)
    whole = request(world.tokens["main"], body_of(seen, chance))
    border = whole.index(b"\r\n\r\n") + 4
    part = whole[: chance.choice((border // 2, border, border + 20))]
    line = Line(world.port)
    try:
        await line.open()
        line.writer.write(part)
        if chance.random() < 0.5:
            await asyncio.sleep(0.1)
            seen.saw = Saw.LEFT
        else:
            await line.receive(seen)
            seen.recorded = len(part) >= border
            if seen.saw is Saw.ERROR and seen.status not in (408, 503):
                world.wrong(f"half a request was answered with {seen.status} {seen.code}", seen)
    except OSError:
        pass
    finally:
        world.end(seen)
        close_quietly(line)


async def pipelines(world: World, chance: random.Random) -> None:
    """Write two requests at once. The second is answered after the first, or the connection is closed."""
    first, second = (world.begin("pipelines", "words", honest=False) for _ in range(2))
    line = Line(world.port)
    try:
        await line.open()
        line.writer.write(b"".join(request(world.tokens["main"], body_of(seen, chance)) for seen in (first, second)))
        await line.receive(first)
        if first.saw is Saw.WHOLE:
            await line.receive(second)
    except OSError:
        pass
    finally:
        world.end(first)
        world.end(second)
        close_quietly(line)


BAD_TOKENS: Final = {
    "missing": "token_missing",
    "malformed": "token_invalid",
    "unknown": "token_invalid",
    "expired": "token_expired",
    "disabled": "token_disabled",
    "deleted": "token_invalid",
}


async def has_no_right(world: World, chance: random.Random) -> None:
    """Come with no token, or with one that is wrong, expired, disabled or deleted."""
    which = chance.choice(list(BAD_TOKENS))
    seen = world.begin(f"token {which}", "words", honest=False)
    token = None if which == "missing" else world.tokens[which]
    line = Line(world.port)
    try:
        await line.open()
        line.writer.write(request(token, body_of(seen, chance)))
        await line.receive(seen)
        limited = (seen.status, seen.code) == (429, "rate_limited")
        seen.recorded = not limited
        if seen.saw is Saw.ERROR and not limited and seen.code not in (BAD_TOKENS[which], "service_unavailable"):
            world.wrong(f"a token that is {which} was answered with {seen.status} {seen.code}", seen)
        if seen.saw is Saw.WHOLE:
            world.wrong(f"a token that is {which} was served", seen)
    except OSError:
        pass
    finally:
        world.end(seen)
        close_quietly(line)


async def is_managed(world: World, chance: random.Random) -> None:
    """Use the account and the token that the operator suspends, disables and refills meanwhile."""
    seen = world.begin("managed", "managed", honest=False)
    await ask(world, seen, body_of(seen, chance), token="managed")


async def is_broke(world: World, chance: random.Random) -> None:
    """Ask without money."""
    seen = world.begin("broke", chance.choice(SOUND), honest=False)
    await ask(world, seen, body_of(seen, chance), token="broke")
    if seen.saw is Saw.WHOLE or (seen.saw is Saw.ERROR and seen.status not in (402, 503)):
        world.wrong(f"an account without money got {seen.saw} {seen.status} {seen.code}", seen)


async def has_exactly(world: World, chance: random.Random) -> None:
    """Send more requests at once than there is money for."""
    burst = [world.begin("has exactly", "exact", honest=False) for _ in range(AT_ONCE)]
    bodies = [body_of(seen, chance, words=EXACT_WORDS, max_tokens=EXACT_WORDS) for seen in burst]
    await asyncio.gather(*(ask(world, seen, body, token="exact") for seen, body in zip(burst, bodies, strict=True)))


async def sends_malformed(world: World, chance: random.Random) -> None:
    """Send one of the malformed and unusual requests that the suite knows."""
    case = chance.choice(CASES)
    seen = world.begin("malformed", "", honest=False)
    seen.recorded = False
    sent = case.sent.replace(b"TOKEN", world.tokens["main"].encode()).replace(b"MARK", b"mark")
    line = Line(world.port)
    try:
        await line.open()
        line.writer.write(sent)
        await line.receive(seen, hang_s=20)
        expected = (case.status, seen.status if case.status < 400 else 0, 503)
        if seen.saw is Saw.ERROR and seen.status not in (*expected, 429, 408):
            world.wrong(f"{case.name}: {seen.status} {seen.code} in place of {case.status} {case.code}", seen)
        if seen.saw is Saw.HANG:
            seen.problem = case.name
    except OSError:
        pass
    finally:
        world.end(seen)
        close_quietly(line)


async def crowds(world: World, chance: random.Random) -> None:
    """Open many connections at once, send half a head on each, and leave after a second."""
    lines = [Line(world.port) for _ in range(100)]

    async def come(line: Line) -> None:
        try:
            await line.open()
            line.writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nX-A: " + b"x" * 200)
        except OSError:
            pass

    await asyncio.gather(*map(come, lines))
    await asyncio.sleep(1)
    for line in lines:
        close_quietly(line)


HOSTILE: Final[dict[Caller, int]] = {
    leaves_early: 6,
    leaves_midway: 8,
    leaves_at_finish: 6,
    never_reads: 1,
    sends_half: 3,
    pipelines: 3,
    has_no_right: 6,
    is_managed: 6,
    is_broke: 3,
    has_exactly: 2,
    sends_malformed: 6,
    crowds: 1,
}
"""How often each comes, relative to the others and to the honest ones."""
