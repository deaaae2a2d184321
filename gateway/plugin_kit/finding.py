"""Result of one check of a plugin, the ways in which an exchange can end, and the sentences about what went wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from typing import Any, Final, TypeVar

import msgspec

from gateway.chain.entry import error_text, origin_of, place_of_hook
from gateway.chain.plugin import Plugin
from gateway.domain.exchange import Outcome

Result = TypeVar("Result")

HOOK: Final = "hook "
"""What the name of the task begins with while it runs a hook: asyncio's debug mode logs the name where the task is slow."""

MODEL: Final = "the-model-at-the-upstream"
"""What the upstream calls the model of each request."""
CHUNKS: Final = (
    b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n',
    b'data: {"choices":[{"delta":{"content":"Gr\xc3\xbc\xc3\x9fe"}}]}\n\n: a comment\r\n\r\n',
    b'data: {"choices":[{"delta":{"content":"\xff"}}]}\n\ndata: no JSON\n\n',
    b'data: {"choices":[],"usage":{"prompt_tokens":10,"completion_tokens":10}}\n\n',
    b"data: [DONE]\n\n",
)
"""Chunks as upstreams send them, well-formed and malformed."""


class Finding(msgspec.Struct, frozen=True):
    """The result of one check. `text` says what was seen, or what is wrong and how to mend it."""

    check: str
    passed: bool
    text: str

    @classmethod
    def of(cls, check: str, problems: Iterable[str], text: str) -> Finding:
        """Return a finding that lists the problems, each once; or one that passed, with `text`, if there are none."""
        distinct = list(dict.fromkeys(problems))
        return cls(check, not distinct, "; ".join(distinct) or text)


class Ending(msgspec.Struct, frozen=True):
    """One way to end: the request, the chunks that the plugin sees before `on_end`, and the outcome that it finds there."""

    name: str
    outcome: Outcome
    chunks: int | None = None
    """How many chunks the plugin sees; None if the upstream never responds."""
    lost_from: int | None = None
    """From which `await` of `on_request` on, counted from 0, the store's replies are lost; None for no lost replies."""
    fails_over: bool = False
    """Whether an upstream fails first, which may have been billed."""
    method: str = "POST"
    path: str = "/v1/chat/completions"


COMPLETED: Final = Ending("the answer was complete", Outcome.COMPLETED, len(CHUNKS))
INCOMPLETE: Final = (
    Ending("a plugin below refused", Outcome.REFUSED),
    Ending("the caller left before the answer", Outcome.CALLER_GONE),
    Ending("the caller left before the first chunk", Outcome.CALLER_GONE, 0),
    Ending("the caller left after a chunk", Outcome.CALLER_GONE, 1),
    Ending("the upstream failed", Outcome.UPSTREAM_FAILED),
    Ending("one upstream failed and another answered", Outcome.COMPLETED, len(CHUNKS), fails_over=True),
    Ending("the upstream ended the stream early", Outcome.UPSTREAM_TRUNCATED, 1),
    Ending("the gateway stopped", Outcome.STOPPED),
)
MODELS: Final = Ending("GET /v1/models", Outcome.COMPLETED, method="GET", path="/v1/models")
MISDIRECTED: Final = Ending("GET /v1/nowhere", Outcome.REFUSED, method="GET", path="/v1/nowhere")


class HookTimeout(Exception):
    """A hook that did not end in time and was cancelled. Its text continues the name of the hook."""


async def limited(hook: str, work: Awaitable[Result], limit_s: float) -> Result:
    """Return the result of `work`, during which the task has the name of the hook. Raises `HookTimeout` after `limit_s` seconds."""
    task: Any = asyncio.current_task()
    name = task.get_name()
    task.set_name(HOOK + hook)
    timeout = asyncio.timeout(limit_s)
    try:
        async with timeout:
            return await work
    except TimeoutError as error:
        if not timeout.expired():
            raise
        waited = error.__cause__ or error.__context__ or error  # before 3.11.4 the context alone
        raise HookTimeout(f"did not end within {limit_s:g} s").with_traceback(waited.__traceback__) from None
    finally:
        await asyncio.sleep(0)  # ends the step of the event loop that is timed
        task.set_name(name)


def raised(hook: str, error: BaseException, ending: Ending) -> str:
    """Return what a hook raised, with its place, and in which ending."""
    at = origin_of(error).get("at", "")
    fact = error.args[0] if isinstance(error, KeyError) and error.args else None
    cure = f"; put {fact.__name__} into `requires`, or use `exchange.get`" if isinstance(fact, type) else ""
    if isinstance(error, AttributeError) and "'coroutine' object" in str(error):
        cure = "; write `await` before the call that returns it"
    lost = ending.lost_from
    when = f"({ending.name})" if lost is None else f"where replies were lost (from wait {lost + 1} on)"
    return f"`{hook}` {told(error)} {when}" + (f" at {at}" if at else "") + cure


def told(error: BaseException) -> str:
    """Return how a hook ended, to continue its name."""
    return str(error) if isinstance(error, HookTimeout) else f"raised {error_text(error)}"


def failed(hook: str, error: BaseException) -> str:
    """Return how a function of a plugin ended, with its place."""
    at = origin_of(error).get("at")
    return f"`{hook}` {told(error)}" + (f" ({at})" if at else "")


def in_vain(plugin: Plugin, hook: str, returned: object) -> list[str]:
    """Return what is wrong with a hook that returns something, in words."""
    if returned is None:
        return []
    return [f"`{hook}` returns {an(returned)}, which is ignored: return nothing{place_of_hook(type(plugin), hook)}"]


def an(value: object) -> str:
    """Return the name of a value's type with its article."""
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
