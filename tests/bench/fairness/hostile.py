"""The first caller: `python -m tests.bench.fairness.hostile NAME PORT UPSTREAM TOKENS`.

It attacks between the lines `go` and `stop` that it reads. After each `stop` it prints a JSON object: how often what happened.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections import Counter

import uvloop

from tests.bench.fairness.attacks import ATTACKS
from tests.bench.fairness.calls import Target
from tests.bench.process import raise_descriptors

NICE = 5
"""Lets the other processes of this machine go first: a caller runs elsewhere."""


async def main(name: str, target: Target) -> None:
    """Attack whenever standard input says so, until it ends."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while await reader.readline() == b"go\n":
        target.tally = Counter()
        attacking = asyncio.ensure_future(ATTACKS[name](target))
        stopping = asyncio.create_task(reader.readline())
        await asyncio.wait([attacking, stopping], return_when=asyncio.FIRST_COMPLETED)
        if attacking.done():
            attacking.result()  # raises what was wrong with it
        attacking.cancel()
        await asyncio.wait([attacking])
        await stopping
        print(json.dumps(target.tally), flush=True)


if __name__ == "__main__":
    os.nice(NICE)
    raise_descriptors()
    uvloop.run(main(sys.argv[1], Target(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4].split(","))))
