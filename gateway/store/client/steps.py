"""Steps: Lua functions that plugins want the store to run, sent together as one script that stops at the first refusal.

1. **The steps of one script run in their order, atomically.** One that refuses or fails ends the script: those after it do not
   run. What ran before it stays, as if each had been sent by itself.
2. **A step sees its own keys and arguments only**, and its plugin only its own reply.
3. **The step of a request may be sent again** after a lost reply, so it must have the same effect then: use the request's id.

A **declared** step is written down once and filled for each request: a text of it has `ID` where the request's id goes, an argument
that differs otherwise is a `HOLE`. `Declared.step` makes a step of it, `Filled` the command of several, in bytes.

`retried` repeats a call whose effect is the same when it is repeated.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from gateway.base.errors import GatewayError, StoreAway, StoreError
from gateway.store.client.client import Argument, Client, Script
from gateway.store.client.protocol import error_of, fill

_RUN: Final = Path(__file__).with_name("steps.lua").read_text(encoding="utf-8")

RAN: Final = 0
STOPPED: Final = 1
FAILED: Final = 2
"""The states of a step: it ran; it ran, and the steps after it did not; it failed, and the steps after it did not run."""

MAX_VALUES: Final = 4000
"""Keys and arguments of one step. Lua's stack has room for twice as many."""

ID: Final = chr(0)
"""Stands in a text for the id of the request."""
ID_LENGTH: Final = 36

Reply = Sequence[Any]
"""Of a step: its state, and its reply, or the text of the error where it failed."""

Read = Callable[[Any], Awaitable[bool | None] | None]

Result = TypeVar("Result")


class Step(msgspec.Struct, eq=False):
    """A Lua function for the store, with its keys and arguments, planned by a plugin and sent by the gateway.

    The text of `script` uses `KEYS` and `ARGV`, and ends with `return reply`, or with `return reply, true` where the steps after it
    must not run. All keys of a step are in one hash slot: put the account in braces, as `Services.key` says. A step is for one
    request: make a new one for each.
    """

    script: Script
    keys: Sequence[str]
    arguments: Sequence[Argument] = ()
    read: Read | None = None
    """Called with the reply, which has bytes for strings, and awaited if it returns something to await. In a request it may raise
    `Refused`. Where the step did not let those after it run, it raises, or gives True: then their plugins plan again, since what
    they planned with has changed."""
    failed: Callable[[GatewayError], Awaitable[None]] | None = None
    """For a step of an end: awaited with the error where the step failed, or may have."""
    may_have_run: bool = False
    """Whether the step has run, or may have: it was sent, and no reply says that it did not run."""

    def __repr__(self) -> str:
        return f"<Step {self.script.name} {', '.join(self.keys)}>"


class Hole:
    """The type of `HOLE`, which stands for an argument that each request has of its own."""


HOLE: Final = Hole()


class Declared(msgspec.Struct, frozen=True):
    """A Lua function for the store, as in `Step`, of which some arguments are holes. Its keys are in one hash slot."""

    script: Script
    keys: Sequence[str]
    arguments: Sequence[Argument | Hole] = ()

    def step(
        self,
        request_id: str,
        values: Sequence[Argument] = (),
        read: Read | None = None,
        failed: Callable[[GatewayError], Awaitable[None]] | None = None,
    ) -> Step:
        """Return the step of one request. `values` fill the holes in their order."""
        given = iter(values)
        arguments = [
            next(given) if isinstance(each, Hole) else each.replace(ID, request_id) if isinstance(each, str) else each
            for each in self.arguments
        ]
        return Step(self.script, [key.replace(ID, request_id) for key in self.keys], arguments, read, failed)


class Filled:
    """The command that runs declared steps as one script."""

    __slots__ = ("_parts", "script")

    def __init__(self, steps: Sequence[Declared]) -> None:
        self.script = together(*(step.script for step in steps))
        keys = [key for step in steps for key in step.keys]
        counts = [size for step in steps for size in (len(step.keys), len(step.arguments))]
        arguments = [each for step in steps for each in step.arguments]
        command = ("EVALSHA", self.script.digest, len(keys), *keys, *counts, *arguments)
        parts: list[bytes | Hole | None] = [b"*%d\r\n" % len(command)]
        for part in command:
            if isinstance(part, Hole):
                parts.append(part)
                continue
            texts = [each.encode() for each in part.split(ID)] if isinstance(part, str) else [_bytes(part)]
            size = sum(map(len, texts)) + (len(texts) - 1) * ID_LENGTH
            parts.append(b"$%d\r\n%b" % (size, texts[0]))
            for text in texts[1:]:
                parts += (None, text)
            parts.append(b"\r\n")
        joined = parts[:1]
        for each in parts[1:]:
            if isinstance(each, bytes) and isinstance(joined[-1], bytes):
                joined[-1] += each
            else:
                joined.append(each)
        self._parts = tuple(joined)
        """Constants, a `HOLE` for each value, and None for each time that the id goes there."""

    def command(self, request_id: str, values: Sequence[Argument]) -> bytes:
        """Return the bytes of the command for one request. `values` fill the holes in their order."""
        return fill(self._parts, request_id, tuple(values))


def _bytes(value: bytes | int) -> bytes:
    return b"%d" % value if isinstance(value, int) else value


def planned(step: object) -> Step:
    """Check the return value of a plugin's planning hook, and return it. Raises `TypeError` unless it is a new step with keys."""
    if not isinstance(step, Step):
        raise TypeError(f"{type(step).__name__} was returned in place of a Step")
    if step.may_have_run or step.read is _was_read:
        raise TypeError("a Step was returned for a second time: make a new one for each request")
    if not step.keys:
        raise TypeError("a Step was returned without keys")
    return step


def forget(step: Step) -> None:
    """Break the reference cycle of a step: `step.read` may refer to the exchange, and the exchange to the step."""
    step.read = _was_read


async def _was_read(_: Any) -> None:
    raise RuntimeError("the reply of this step was read already")


async def run_steps(client: Client, steps: Sequence[Step]) -> list[Reply]:
    """Run steps with keys in one hash slot as one script; return the replies of the steps that ran, one reply at least.

    Raises `StoreAway` or `StoreError`: then each of them may have run.
    """
    return ran(steps, await submit(client, steps))


def submit(client: Client, steps: Sequence[Step]) -> asyncio.Future[list[Reply]]:
    """Send steps as one script, with the other commands of this tick. Give its replies to `ran`.

    Raises an exception of any type where a step has something in it that cannot be sent: then none was sent.
    """
    keys: list[str] = []
    counts: list[Argument] = []
    arguments: list[Argument] = []
    scripts: list[Script] = []
    for step in steps:
        scripts.append(step.script)
        keys += step.keys
        sizes = len(step.keys), len(step.arguments)
        if sum(sizes) > MAX_VALUES:
            raise ValueError(f"a step has {sum(sizes)} keys and arguments; the most is {MAX_VALUES}")
        counts += sizes
        arguments += step.arguments
    reply = client.run(together(*scripts), keys, counts + arguments)
    for step in steps:
        step.may_have_run = True
    return reply


def ran(steps: Sequence[Step], replies: list[Reply]) -> list[Reply]:
    """Return the replies of the steps that ran, and mark the others. Raises `StoreError` where the script ran no step."""
    if not replies:
        raise StoreError("the store's reply is not understood")
    for step in steps[len(replies) :]:
        step.may_have_run = False
    return replies


def error_in(status: int, value: Any) -> GatewayError | None:
    """Return the error in a reply, if it is one. A script may also return an error of `redis.pcall`."""
    if status == FAILED:
        value = error_of(value.decode(errors="replace"))
    elif not isinstance(value, Exception):
        return None
    return value if isinstance(value, GatewayError) else StoreError(str(value))


def in_one_slot(client: Client, steps: Sequence[Step]) -> int:
    """Return how many of the first steps can be sent as one script: all, but in a cluster only those of one hash slot."""
    if not client.sharded:
        return len(steps)
    tag = slot_tag(steps[0].keys[0])
    return next((index for index, step in enumerate(steps) if slot_tag(step.keys[0]) != tag), len(steps))


def slot_tag(key: str) -> str:
    """Return the part of a key that decides its hash slot in a cluster."""
    inside, closed, _ = key.partition("{")[2].partition("}")
    return inside if closed and inside else key


@lru_cache(256)
def together(*scripts: Script) -> Script:
    """Return the script that runs `scripts`, each as a function with `KEYS` and `ARGV` of its own."""
    functions = ",\n".join(f"function(KEYS, ARGV)\n{script.text}\nend" for script in scripts)
    return Script("steps", f"local functions = {{\n{functions}\n}}\n{_RUN}")


async def retried(attempt: Callable[[], Awaitable[Result]], retry_for_s: float) -> Result:
    """Retry an idempotent call with backoff until it returns.

    Raises `StoreAway` when `retry_for_s` is over, or as soon as no further attempt would begin before that. Each attempt has the
    client's timeout, so the first one, which nearly always is the only one, needs no timer.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + retry_for_s
    try:
        return await attempt()
    except StoreAway as error:
        last_error = error
    pause_s = 0.02
    try:
        async with asyncio.timeout_at(deadline):
            while loop.time() + (wait_s := pause_s * random.uniform(0.5, 1.5)) < deadline:  # noqa: S311 - jitter
                await asyncio.sleep(wait_s)
                pause_s = min(2 * pause_s, 0.5)
                try:
                    return await attempt()
                except StoreAway as error:
                    last_error = error
    except TimeoutError:
        pass
    raise last_error from None
