"""Every place and moment in which an upstream may report usage, with every way the answer may end: the charge that is due."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Final

import msgspec
import pytest

from gateway.chat.usage import Usage
from gateway.testing import Running
from tests.patience import PATIENCE_S
from tests.whole.aftermath import charged, last_end_record
from tests.whole.conftest import Serve
from tests.whole.raw import ask, chat
from tests.whole.scripted import CHUNKED, LAST, Forever, Hold, Reset, Scripted, Step, chunk

PROMPT: Final = -(-len('[{"role": "user", "content": "hi"}]') // 4)
TEXT: Final = -(-len(" word0 word1 word2") // 4)
"""The estimates of the input and of the output."""
ESTIMATE: Final = Usage(PROMPT, TEXT, "estimated")
EXACT: Final = Usage(11, 60, "upstream")
FULL: Final = {"prompt_tokens": 11, "completion_tokens": 60, "total_tokens": 71}
ZERO: Final = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}


class Moment(msgspec.Struct, frozen=True):
    """Where usage is: in the first chunk, in each one, beside the finish, or in a chunk after it; and what is due.

    `finished`: for an answer that is read at least to its finish reason and what follows it within two seconds. `cut`: for one
    that ends earlier.
    """

    finished: Usage
    cut: Usage = ESTIMATE
    first: dict[str, Any] = {}
    each: dict[str, Any] = {}
    finish: dict[str, Any] = {}
    choice: dict[str, Any] = {}
    after: dict[str, Any] | None = None

    def events(self) -> tuple[bytes, bytes, bytes]:
        """Return the events before the finish, with it, and after it up to `[DONE]`."""
        before = [data({"role": "assistant", "content": ""}, **self.first, **self.each)]
        before += [data({"content": f" word{number}"}, **self.each) for number in range(3)]
        finish = data({}, "stop", self.choice, **self.finish)
        after = b"data: %b\n\n" % json.dumps(self.after).encode() if self.after is not None else b""
        return b"".join(before), finish, after


def data(delta: dict[str, str], finish: str | None = None, choice: dict[str, Any] | None = None, **more: Any) -> bytes:
    choices = [{"index": 0, "delta": delta, "finish_reason": finish, **(choice or {})}]
    return b"data: %b\n\n" % json.dumps({"id": "c", "choices": choices, **more}).encode()


MOMENTS: Final = {
    "never": Moment(ESTIMATE),
    "in the first chunk": Moment(
        Usage(11, TEXT, "estimated"),
        Usage(11, TEXT, "estimated"),
        first={"usage": {"prompt_tokens": 11, "completion_tokens": 1}},
    ),
    "in each chunk before the finish": Moment(EXACT, Usage(11, 60, "estimated"), each={"usage": FULL}),
    "zero in each chunk": Moment(ESTIMATE, each={"usage": ZERO}, finish={"usage": ZERO}),
    "beside the finish": Moment(EXACT, finish={"usage": FULL}),
    "in the choice with the finish": Moment(EXACT, choice={"usage": FULL}),
    "in x_groq with the finish": Moment(EXACT, finish={"x_groq": {"usage": FULL}}),
    "too little with the finish, then all": Moment(
        EXACT, finish={"usage": FULL | {"completion_tokens": 1}}, after={"choices": [], "usage": FULL}
    ),
    "after the finish": Moment(EXACT, after={"choices": [], "usage": FULL}),
    "after it, choices null": Moment(EXACT, after={"choices": None, "usage": FULL}),
    "after it, no choices": Moment(EXACT, after={"usage": FULL}),
    "after it, as input and output": Moment(
        EXACT, after={"choices": [], "usage": {"input_tokens": 11, "output_tokens": 60}}
    ),
    "after it, reasoning in the total alone": Moment(
        EXACT, after={"choices": [], "usage": FULL | {"completion_tokens": 6}}
    ),
    "after it, the total alone": Moment(
        Usage(PROMPT, 71 - PROMPT, "estimated"), after={"choices": [], "usage": {"total_tokens": 71}}
    ),
    "after it, zero": Moment(ESTIMATE, after={"choices": [], "usage": ZERO}),
    "after it, output zero": Moment(
        Usage(11, TEXT, "estimated"), after={"choices": [], "usage": {"prompt_tokens": 11, "completion_tokens": 0}}
    ),
}

DONE: Final = b"data: [DONE]\n\n"
FAILURE: Final = b'data: {"error":{"message":"no"}}\n\n'
SHORT_IDLE: Final = ", timers: {idle: 0.5}"
SHORT_TOTAL: Final = ", timers: {total: 1}"
BOUNDED: Final = ", max_response_bytes: 20000"
ENDINGS: Final = {
    # What ends the answer: whether it is read to the finish and beyond, and the channel's settings.
    "complete with [DONE]": (True, ""),
    "clean end after the finish": (True, ""),
    "break after the finish": (True, ""),
    "silence after the finish": (True, SHORT_IDLE),
    "the caller leaves after the finish": (True, ""),
    "silence after the caller left": (True, ""),
    "clean end before the finish": (False, ""),
    "break before the finish": (False, ""),
    "silence before the finish": (False, SHORT_IDLE),
    "an error event": (False, ""),
    "too long": (False, SHORT_TOTAL),
    "too large": (False, BOUNDED),
    "the caller leaves before the finish": (False, ""),
}


def script_of(ending: str, moment: Moment) -> list[Step]:
    before, finish, after = moment.events()
    start, whole = CHUNKED + chunk(before), CHUNKED + chunk(before + finish + after)
    steps: dict[str, list[Step]] = {
        "complete with [DONE]": [CHUNKED + chunk(before + finish + after + DONE) + LAST],
        "clean end after the finish": [whole + LAST],
        "break after the finish": [whole, 0.05, Reset],
        "silence after the finish": [whole, Hold],
        "the caller leaves after the finish": [CHUNKED + chunk(before + finish), 0.2, chunk(after) + LAST],
        "silence after the caller left": [CHUNKED + chunk(before + finish), 0.2, chunk(after + b": x\n\n"), Hold],
        "clean end before the finish": [start + LAST],
        "break before the finish": [start, 0.05, Reset],
        "silence before the finish": [start, Hold],
        "an error event": [start, 0.01, chunk(FAILURE) + LAST],
        "too long": [start, Forever(chunk(b": x\n\n"), 0.1)],
        "too large": [start, 0.01, chunk(b": x\n\n" * 5000), Hold],
        "the caller leaves before the finish": [start, Hold],
    }
    return steps[ending]


async def leave(gateway: Running, token: str, last: bytes) -> None:
    """Ask, and leave when `last` was read."""
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write(chat(token))
    async with asyncio.timeout(PATIENCE_S):
        await reader.readuntil(last)
    writer.close()


SLOW: Final = ("silence", "too long", "too large", "clean end before", "the caller leaves before")
FEW: Final = ("never", "in the first chunk", "in each chunk before the finish", "beside the finish", "after the finish")
"""The moments that are tried with the endings that take long, or are like another one."""
CELLS: Final = [(each, ending) for ending in ENDINGS for each in (FEW if ending.startswith(SLOW) else MOMENTS)]


@pytest.mark.parametrize(("moment", "ending"), CELLS)
async def test_the_charge_of_each_ending(moment: str, ending: str, serve: Serve) -> None:
    finished, channel = ENDINGS[ending]
    due = MOMENTS[moment].finished if finished else MOMENTS[moment].cut
    async with (
        Scripted(script_of(ending, MOMENTS[moment])) as upstream,
        serve(upstream.base_url, channel=channel) as gateway,
    ):
        token = await gateway.token()
        if "the caller le" in ending:
            await leave(gateway, token, b'"stop"' if finished else b"word2")
        else:
            await ask(gateway.port, chat(token))
        record = await last_end_record(gateway)
        assert Usage(record.prompt_tokens, record.completion_tokens, record.usage_source) == due
        assert await charged(gateway) == record.charge_micros == due.prompt_tokens + 2 * due.completion_tokens
