"""Callers that do nothing wrong: each asks, reads as it does, and notes what it saw."""

from __future__ import annotations

import asyncio
import base64
import json
import random
from collections.abc import Awaitable, Callable
from typing import Any, Final

from tests.bench.life.answers import KINDS, WHOLE
from tests.bench.life.failures import FAILING
from tests.bench.life.seen import Saw, Seen
from tests.bench.life.wire import Line, Stop, close_quietly, never, request
from tests.bench.life.world import World, body_of

Caller = Callable[[World, random.Random], Awaitable[None]]

SOUND: Final = sorted(
    name
    for name, kind in KINDS.items()
    if WHOLE in kind.ends and name not in ("endless", "exact", "seasonal", "managed", "proxied", "spare", "huge-event")
)
"""Upstreams that answer in full, alone behind their model."""


FAST: Final = 4
"""Accounts with a low limit, one caller each at a time."""
MODELS: Final = ("words", "usage-never")
"""Models for large requests: the one tells its usage, the other's is estimated."""


async def ask(
    world: World,
    seen: Seen,
    body: dict[str, Any],
    *,
    token: str = "main",
    line: Line | None = None,
    stop: Stop = never,
    pause_s: float = 0.0,
    reset: bool = False,
) -> bytes:
    """Send one request, on a new connection unless `line` is given, and return the body of the answer."""
    own = line or Line(world.port)
    try:
        if line is None:
            await own.open()
        own.writer.write(request(world.tokens[token], body))
        return await own.receive(seen, stop=stop, pause_s=pause_s)
    except OSError:
        seen.saw = Saw.NOTHING
        return b""
    finally:
        world.end(seen)
        if line is None and hasattr(own, "writer"):
            own.close(reset=reset)


async def keeps_alive(world: World, chance: random.Random) -> None:
    """Send some requests on one connection, and read all."""
    line = Line(world.port)
    try:
        await line.open()
        for _ in range(chance.randint(1, 4)):
            seen = world.begin("keeps alive", chance.choice([*SOUND, "words", "words"]))
            await ask(world, seen, body_of(seen, chance), line=line)
            if seen.saw not in (Saw.WHOLE, Saw.ERROR) or line.closes:
                return
            await asyncio.sleep(chance.choice((0, 0, 0.5)))
    except OSError:
        pass
    finally:
        close_quietly(line)


async def reads_paced(world: World, chance: random.Random) -> None:
    """Read an answer that comes one word at a time for some seconds."""
    seen = world.begin("reads paced", chance.choice(("words", "words", "proxied", "usage-never")))
    await ask(world, seen, body_of(seen, chance, pace=chance.uniform(0.02, 0.15), late=chance.choice((0, 0.2))))


async def reads_slowly(world: World, chance: random.Random) -> None:
    """Read a large answer slowly through a small buffer."""
    seen = world.begin("reads slowly", chance.choice(("words", "logprobs")))
    line = Line(world.port, receive_buffer=4096)
    try:
        await line.open()
        await ask(world, seen, body_of(seen, chance, words=60), line=line, pause_s=0.03)
    except OSError:
        world.end(seen)
    finally:
        close_quietly(line)


async def asks_failing(world: World, chance: random.Random) -> None:
    """Ask an upstream that fails."""
    seen = world.begin("asks failing", chance.choice(FAILING))
    await ask(world, seen, body_of(seen, chance))


async def asks_proxied(world: World, chance: random.Random) -> None:
    """Ask an upstream behind a network that fails at times, or a model with spare channels, or one that comes and goes."""
    seen = world.begin("asks proxied", chance.choice(("proxied", "spare", "seasonal")))
    await ask(world, seen, body_of(seen, chance))


async def asks_echo(world: World, chance: random.Random) -> None:
    """Ask an upstream that repeats the gateway's credential, which must not reach the caller."""
    seen = world.begin("asks echo", "echoes")
    if b"canary" in await ask(world, seen, body_of(seen, chance)):
        world.wrong("the upstream's credential reached the caller", seen)


async def sends_large(world: World, chance: random.Random) -> None:
    """Send much: tools, a picture, or a long text; or get one huge event."""
    what = chance.choice(("tools", "picture", "text", "huge answer"))
    seen = world.begin(f"sends large: {what}", "huge-event" if what == "huge answer" else chance.choice(MODELS))
    more: dict[str, Any] = {}
    if what == "tools":
        schema = {"type": "object", "properties": {f"p{each}": {"type": "string"} for each in range(40)}}
        more["tools"] = [
            {"type": "function", "function": {"name": f"f{each}", "parameters": schema}} for each in range(80)
        ]
    elif what == "picture":
        url = "data:image/png;base64," + base64.b64encode(chance.randbytes(500_000)).decode()
        parts = [{"type": "text", "text": "what is it"}, {"type": "image_url", "image_url": {"url": url}}]
        more["messages"] = [{"role": "user", "content": parts}]
    elif what == "text":
        more["messages"] = [{"role": "user", "content": "word " * 60_000}]
    await ask(world, seen, body_of(seen, chance, **more))


async def takes_whole_json(world: World, chance: random.Random) -> None:
    """Ask without `stream`, which this gateway allows."""
    seen = world.begin("takes JSON", "words")
    body = await ask(world, seen, body_of(seen, chance, stream=False))
    if seen.saw is Saw.WHOLE and "choices" not in json.loads(body):
        world.wrong("a JSON answer without choices", seen)


async def looks(world: World, chance: random.Random) -> None:
    """Read what is not generated: models, the account, the record of an own request, health."""
    own = next(
        (each.id for each in reversed(world.seen[-50:]) if each.saw is Saw.WHOLE and each.honest and each.id), "none"
    )
    path = chance.choice(("/v1/models", "/v1/account", f"/v1/requests/{own}", "/healthz", "/readyz"))
    seen = world.begin("looks", "")
    seen.recorded = path.startswith("/v1")
    line = Line(world.port)
    try:
        await line.open()
        lines = f"Host: gateway\r\nAuthorization: Bearer {world.tokens['main']}\r\nConnection: close\r\n"
        line.writer.write(f"GET {path} HTTP/1.1\r\n{lines}\r\n".encode())
        body = await line.receive(seen)
        if body == b"degraded\n":
            seen.saw, seen.code, seen.problem = Saw.ERROR, "service_unavailable", ""
        if seen.status == 404 and own != "none":
            world.wrong(f"the record of {own} was not found by its own account", seen)
    except OSError:
        pass
    finally:
        world.end(seen)
        close_quietly(line)


async def obeys(world: World, chance: random.Random) -> None:
    """Send too fast, and after a 429 wait for as long as it says: then the request is taken."""
    account = f"fast{chance.randrange(FAST)}"
    if account in world.busy:
        return
    world.busy.add(account)
    obeyed, asked_s = False, 0.0
    for _ in range(chance.randint(2, 8)):
        seen = world.begin("obeys", "words", honest=False)
        await ask(world, seen, body_of(seen, chance, words=2), token=account)
        limited = seen.saw is Saw.ERROR and seen.code == "rate_limited"
        # What drained before a clock was set back is not known to the store: that wait begins anew.
        if limited and obeyed and not world.timeline.around(asked_s, world.timeline.now, ("clock",)):
            world.wrong("limited again after the announced wait", seen)
        asked_s = world.timeline.now
        if limited and seen.retry_after:
            await asyncio.sleep(int(seen.retry_after) / 1000)
        obeyed = limited
    world.busy.discard(account)


HONEST: Final[dict[Caller, int]] = {
    keeps_alive: 30,
    reads_paced: 12,
    reads_slowly: 2,
    asks_failing: 30,
    asks_proxied: 12,
    asks_echo: 3,
    sends_large: 6,
    takes_whole_json: 3,
    looks: 8,
    obeys: 4,
}
"""How often each comes, relative to the others."""
