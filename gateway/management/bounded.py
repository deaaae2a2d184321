"""How often an actor may do what hardly needs a right, and leaves lines in the audit log all the same."""

from __future__ import annotations

import time
from hashlib import sha256
from typing import Final

from gateway.errors import Refused
from gateway.store.client.client import Client

MINUTE_S: Final = 60


async def check_rate(client: Client, operation: str, actor: str, most: int) -> None:
    """Count that an actor does an operation. Raises `Refused` (429) for more than `most` in a minute, and `StoreAway`."""
    minute, second = divmod(int(time.time()), MINUTE_S)
    key = f"gw:{{rate}}:{operation}:{sha256(actor.encode()).hexdigest()[:32]}:{minute}"
    count = int(await client.call("INCR", key))
    await client.call("EXPIRE", key, 2 * MINUTE_S)
    if count > most:
        wait_s = float(MINUTE_S - second)
        raise Refused(
            429, "rate_limited", f"At most {most} of these a minute: wait until the next.", retry_after_s=wait_s
        )
