"""Giving an upstream's connection back where the answer is complete and the end of its body has not arrived yet.

Many upstreams send `[DONE]` and the end of the body in two writes. The caller does not wait for the second one, and without it
the connection could not carry another request.
"""

from __future__ import annotations

import asyncio
from typing import Final

from gateway.proxy.upstream import UpstreamConnection

LINGER_S: Final = 0.5
MAX_SURPLUS: Final = 64 * 1024
"""Bytes that may arrive after the answer before the connection is closed."""


def release_at_end(upstream: UpstreamConnection) -> None:
    """Release the connection when the body has ended, at the latest after `LINGER_S`. What arrives is discarded."""
    if upstream.ended:
        upstream.release()
        return
    surplus = 0
    released = False

    def release(clean: bool = False) -> None:
        nonlocal released
        if not released:
            released = True
            timer.cancel()
            upstream.release()

    def on_data(data: bytes) -> None:
        nonlocal surplus
        surplus += len(data)
        if surplus > MAX_SURPLUS:
            release()

    timer = asyncio.get_running_loop().call_later(LINGER_S, release)
    upstream.flow_to(on_data, release)
