"""What an upstream sends after the end of a relay is neither passed on nor counted: it would be charged."""

from __future__ import annotations

import pytest

from gateway.proxy.chunk_hooks import EndReason
from tests.fuzz.twins import Twin
from tests.proxy.test_chunks import HEAD, PLAIN, chunk

FINISHING = PLAIN.replace(b"null", b'"stop"')
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":1000,"completion_tokens":1000}}\n\n'


@pytest.mark.parametrize("later", [PLAIN, 3 * PLAIN, PLAIN[:20], FINISHING + USAGE, b": a comment\n\n"])
async def test_nothing_is_counted_after_the_end(later: bytes) -> None:
    twin = Twin(max_bytes=1 << 20)
    for data in (HEAD, chunk(PLAIN), chunk(PLAIN)):
        twin.read(data)
    events, written = twin.relay.events, len(twin.to_caller.calls)
    tokens = events.output.tokens()
    assert tokens == events.events == 2
    twin.relay.end(EndReason.STOPPING)
    twin.read(chunk(later))
    assert events.output.tokens() == tokens
    assert (events.events, events.finished, events.usage.completion) == (2, False, 0)
    assert len(twin.to_caller.calls) == written
    twin.close()
