"""Steps: Lua functions that plugins want the store to run, sent together as one script that stops at the first refusal.

1. **The steps of one script run in their order, atomically.** One that refuses or fails ends the script: those after it do not
   run. What ran before it stays, as if each had been sent by itself.
2. **A step sees its own keys and arguments only**, and its plugin only its own reply.
3. **A step may be sent again** after a lost reply, so it must have the same effect when it is repeated: use the request's id.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from gateway.errors import GatewayError, StoreError
from gateway.store.client.client import Argument, Client, Script
from gateway.store.client.connection import error_of

_RUN: Final = Path(__file__).with_name("steps.lua").read_text(encoding="utf-8")

Read = Callable[[Any], Awaitable[bool | None]]
Failed = Callable[[GatewayError], Awaitable[None]]


class Step(msgspec.Struct, eq=False):
    """A Lua function for the store, with its keys and arguments, planned by a plugin and sent by the gateway.

    The text of `script` uses `KEYS` and `ARGV`, and ends with `return reply`, or with `return reply, true` where the steps after it
    must not run. All keys of a step are in one hash slot: put the account in braces, as `Services.key` says.
    """

    script: Script
    keys: Sequence[str]
    arguments: Sequence[Argument] = ()
    read: Read | None = None
    """Awaited with the reply, as redis-py returns it. It may raise `Refused`, in a request. It returns True where the step did not
    let those after it run, and their plugins must plan again, since what they planned with has changed."""
    failed: Failed | None = None
    """For a step of an end: awaited with the error where the step failed, or may have."""
    may_have_run: bool = False
    """Whether the step has run, or may have: it was sent, and no reply says that it did not run."""

    def __repr__(self) -> str:
        return f"<Step {self.script.name} {', '.join(self.keys)}>"


class StepReply(NamedTuple):
    """What became of a step that ran. `stopped`: those after it did not run. `error`: why it failed."""

    value: Any
    stopped: bool
    error: GatewayError | None


async def run_steps(client: Client, steps: Sequence[Step]) -> list[StepReply]:
    """Run steps whose keys are in one hash slot as one script; return the replies of those that ran.

    Raises `StoreAway` or `StoreError`: then each of them may have run.
    """
    replies = await submit(client, steps)
    return read_replies(steps, replies)


def submit(client: Client, steps: Sequence[Step]) -> asyncio.Future[Any]:
    """Send steps as one script, with the other commands of this tick. `read_replies` understands its reply."""
    keys: list[str] = []
    counts: list[Argument] = []
    arguments: list[Argument] = []
    for step in steps:
        step.may_have_run = True
        keys += step.keys
        counts += (len(step.keys), len(step.arguments))
        arguments += step.arguments
    return client.run(_together(tuple([step.script for step in steps])), keys, counts + arguments)


def read_replies(steps: Sequence[Step], replies: Sequence[Any]) -> list[StepReply]:
    """Return the reply of each step that ran, one at least, and mark the others. Raises `StoreError` for other replies."""
    if not replies:
        raise StoreError("the store's reply is not understood")
    for step in steps[len(replies) :]:
        step.may_have_run = False
    return [_reply(*reply) for reply in replies]


def in_one_slot(client: Client, steps: Sequence[Step]) -> int:
    """Return how many of the first steps can be sent as one script: all, but in a cluster only those of one hash slot."""
    if not client.sharded:
        return len(steps)
    tag = _tag(steps[0])
    return next((index for index, step in enumerate(steps) if _tag(step) != tag), len(steps))


def _tag(step: Step) -> str:
    """Return the part of a key that decides its hash slot."""
    key = step.keys[0]
    inner = key.partition("{")[2].partition("}")
    return inner[0] if inner[1] and inner[0] else key


def _reply(status: int, value: Any) -> StepReply:
    if status == 2:
        return StepReply(None, True, _as_error(error_of(value.decode(errors="replace"))))
    if isinstance(value, Exception):  # a script may return an error of `redis.pcall` as its reply
        return StepReply(None, status == 1, _as_error(value))
    return StepReply(value, status == 1, None)


def _as_error(error: Exception) -> GatewayError:
    return error if isinstance(error, GatewayError) else StoreError(str(error))


@lru_cache(256)
def _together(scripts: tuple[Script, ...]) -> Script:
    """Return the script that runs `scripts`, each as a function with `KEYS` and `ARGV` of its own."""
    functions = ",\n".join(f"function(KEYS, ARGV)\n{script.text}\nend" for script in scripts)
    return Script("steps", f"local functions = {{\n{functions}\n}}\n{_RUN}")
