"""What the store has of the pepper: its fingerprint, who recorded it, and until when tokens of the one before are accepted.

1. **Tokens are made with the pepper whose fingerprint the store has**, by every gateway and command, or not at all.
2. **A change of the pepper is one write**, which is made only where nothing else changed it meanwhile.
"""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import Final

import msgspec

from gateway.errors import Misconfigured
from gateway.request_id import utc
from gateway.store.client.client import Client, Script
from gateway.store.layout import FINGERPRINT
from gateway.store.pepper import OLD_VARIABLE, VARIABLE, PepperSource, fingerprint_of, make_pepper

LOST: Final = "if it is lost: `gateway pepper rotate --lost`, which voids every token"
_CHANGE: Final = Script.load(Path(__file__).with_name("pepper_change.lua"))


class PepperRecord(msgspec.Struct, frozen=True):
    """The store's record. `old` and `until`: the fingerprint before, and when its tokens end, in seconds since 1970."""

    fingerprint: bytes
    host: str = ""
    since: int = 0
    old: bytes = b""
    until: int = 0

    @property
    def recorded(self) -> str:
        """Who recorded it and when, for an error."""
        return (
            f"the gateway on {self.host} recorded it at {utc(self.since * 1000)}" if self.host else "it is in the store"
        )

    def accepts_old(self) -> bool:
        """Return whether tokens of the pepper before are accepted now."""
        return bool(self.old) and self.until > time.time()


async def record_of(client: Client) -> PepperRecord | None:
    """Return the store's record, None where no gateway has been started with it. Raises `StoreAway`."""
    fields = await client.call("HGETALL", FINGERPRINT)
    if b"fingerprint" not in fields:
        return None
    since, until = (int(fields.get(name, b"0")) for name in (b"since", b"until"))
    host = fields.get(b"host", b"").decode()
    return PepperRecord(fields[b"fingerprint"], host, since, fields.get(b"old", b""), until)


async def change(client: Client, before: bytes, after: bytes, old: bytes = b"", until: int = 0) -> bool:
    """Record the fingerprint `after` where the store has `before` (empty for none), and return whether it had."""
    arguments = (before, after, socket.gethostname(), int(time.time()), old, until)
    return bool(await client.run(_CHANGE, [FINGERPRINT], arguments))


async def ensure(client: Client, data: Path) -> None:
    """Make the pepper of a data folder for a store that has none.

    Raises `Misconfigured` where the store has had one, and `StoreAway`.
    """
    path = data / "pepper"
    if VARIABLE in os.environ or path.exists():
        return
    if (record := await record_of(client)) is None and not await _has_tokens(client):
        make_pepper(data)
        return
    raise Misconfigured(
        f"{path} is missing, and is not made anew: the store has tokens of it{f', {record.recorded}' if record else ''}. "
        f"Copy it from the data folder there or from a backup, or set ${VARIABLE}; {LOST}"
    )


async def _has_tokens(client: Client) -> bool:
    async for _ in client.keys("gw:{*}:tokens"):
        return True
    return False


async def checked(client: Client, source: PepperSource) -> PepperRecord:
    """Return the store's record, which is one of the source's peppers; the present one is recorded where there is none.

    Raises `Misconfigured` where it is another one, and `StoreAway`.
    """
    own = fingerprint_of(source())
    while (record := await record_of(client)) is None:
        await change(client, b"", own)
    refuse_other(record, source)
    return record


def refuse_other(record: PepperRecord, source: PepperSource) -> None:
    """Raise `Misconfigured` where the record is of none of the source's peppers, or one of them cannot be read."""
    own, old = fingerprint_of(source()), source.old()
    if record.fingerprint in (own, old and fingerprint_of(old)):
        return
    if own == record.old:
        raise Misconfigured(
            f"the pepper was changed: {source.name} is the one before, {record.recorded}. Copy `pepper` and `pepper.old` from the "
            f"data folder there, or set ${VARIABLE} and ${OLD_VARIABLE} as there"
        )
    raise Misconfigured(
        f"the pepper is not the one with which the store's tokens were made: {source.name} is another, {record.recorded}. Copy "
        f"the file `pepper` of its data folder or of a backup, or set ${VARIABLE} alike for all gateways and commands; {LOST}"
    )
