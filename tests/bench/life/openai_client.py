"""The official client as a caller: it streams, and its exceptions are put into the words of `Seen`."""

from __future__ import annotations

import random
from typing import Any, Final

import httpx2
from openai import APIConnectionError, APIError, APIStatusError, AsyncOpenAI

from tests.bench.life.callers import SOUND, Caller
from tests.bench.life.seen import Saw
from tests.bench.life.wire import HANG_S
from tests.bench.life.world import World, body_of


async def streams(world: World, chance: random.Random) -> None:
    """Stream an answer, and read all of it."""
    seen = world.begin("official client", chance.choice([*SOUND, "words", "proxied"]))
    body: dict[str, Any] = body_of(seen, chance)
    extra = {"words": body.pop("words")}
    try:
        async with AsyncOpenAI(
            base_url=f"http://127.0.0.1:{world.port}/v1",
            api_key=world.tokens["main"],
            max_retries=0,
            timeout=HANG_S,
            http_client=httpx2.AsyncClient(trust_env=False),
        ) as client:
            answer = await client.chat.completions.with_raw_response.create(**body, extra_body=extra)
            seen.status, seen.id = 200, answer.headers["x-request-id"]
            async for chunk in answer.parse():
                seen.events += 1
                if chunk.choices and chunk.choices[0].finish_reason:
                    seen.finish = True
            seen.saw = Saw.WHOLE if seen.finish else Saw.CUT
    except APIStatusError as error:
        seen.saw, seen.status, seen.code = Saw.ERROR, error.status_code, str(error.code)
        seen.id = error.response.headers.get("x-request-id", "")
        seen.retry_after = error.response.headers.get("retry-after-ms", "")
    except APIConnectionError:
        seen.saw = Saw.CUT if seen.status else Saw.NOTHING
    except APIError as error:
        seen.saw, seen.code = Saw.CUT, str(error.code)
    except (httpx2.HTTPError, OSError):
        seen.saw = Saw.CUT if seen.status else Saw.NOTHING
    finally:
        world.end(seen)


CLIENT: Final[dict[Caller, int]] = {streams: 5}
"""How often it comes, relative to the other callers."""
