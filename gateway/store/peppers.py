"""The texts of tokens, made with the store's pepper and read with it or, while it is accepted, with the one before.

1. A text is tried with the present pepper first: where only one is accepted, which is nearly always, nothing else is computed.
2. What is accepted is read again now and then by `refresh`, so a change takes effect without a restart. A file that changed is
   also looked at when a text cannot be read, once a second at most: the first token of another pepper is accepted at once.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from gateway.errors import GatewayError
from gateway.log import Logger
from gateway.store.client.client import Client
from gateway.store.pepper import PepperSource, fingerprint_of
from gateway.store.pepper_record import PepperRecord, checked, record_of, refuse_other
from gateway.store.token_format import TokenCodec

LOOK_INTERVAL_S: Final = 1.0

log = Logger("gateway.store.peppers")


class Peppers:
    """The peppers of one process, and what the store says of them."""

    def __init__(self, client: Client, source: Callable[[], bytes]) -> None:
        """Read the source when it is first needed: what concerns no secret works without it."""
        self._client = client
        self._source = source if isinstance(source, PepperSource) else PepperSource(source)
        self._codecs: dict[bytes, TokenCodec] = {}
        """Of all peppers here, the present one first; empty until they are read."""
        self._accepted: tuple[TokenCodec, ...] = ()
        self._version: object = None
        self._record: PepperRecord | None = None
        self._look_at = 0.0

    def read(self, text: str) -> tuple[str, str] | None:
        """Return the account and the short id in a text, or None if no accepted pepper made it. Raises `Misconfigured`."""
        if not self._codecs:
            self._load()
        for codec in self._accepted:
            if (ids := codec.read(text)) is not None:
                return ids
        return self.read(text) if self._changed() else None

    def digest(self, text: str) -> bytes:
        """Return the digest of a text, which the store holds; for one that no accepted pepper made, what is in no record."""
        if not self._codecs:
            self._load()
        for codec in self._accepted:
            if len(self._accepted) == 1 or codec.read(text) is not None:
                return codec.digest(text)
        return os.urandom(32)

    def make(self, account: str, short_id: str = "") -> tuple[str, str]:
        """Do as `TokenCodec.make`, with the pepper that the store has."""
        if not self._codecs:
            self._load()
        present = self._record.fingerprint if self._record else b""
        return self._codecs.get(present, next(iter(self._codecs.values()))).make(account, short_id)

    async def check(self) -> None:
        """Check that the store's tokens are of a pepper of this process. Raises `Misconfigured` where not, and `StoreAway`."""
        self._record = await checked(self._client, self._source)
        self._load()

    async def refresh(self) -> bool:
        """Read again what is accepted, and return whether it is something else than before. Raises `StoreAway`.

        Log an error where a file cannot be read, and go on with what it had; and where the store has another pepper.
        """
        before = self._accepted
        self._record = await record_of(self._client) or self._record
        try:
            if self._source.version() != self._version or not self._codecs:
                self._load()
            if self._record is not None:
                refuse_other(self._record, self._source)
        except GatewayError as error:
            log.error("pepper_is_another", reason=str(error))
        self._choose()
        return self._accepted != before

    def _load(self) -> None:
        version, current, old = self._source.version(), self._source(), self._source.old()
        peppers = {fingerprint_of(pepper): pepper for pepper in (current, old) if pepper is not None}
        present = self._record.fingerprint if self._record else b""
        if (
            present in self._codecs and present not in peppers
        ):  # a wrong file, or one that the store will name: look again
            return
        self._version = version
        self._codecs = {name: self._codecs.get(name) or TokenCodec(pepper) for name, pepper in peppers.items()}
        self._choose()

    def _choose(self) -> None:
        """Accept the present pepper, also where the store does not know it yet, and the old one while the store does."""
        names = list(self._codecs)
        if (record := self._record) is not None:
            ended = b"" if record.accepts_old() else record.old
            names = [name for name in names if name in (record.fingerprint, names[0], record.old) and name != ended]
        self._accepted = tuple(self._codecs[name] for name in names)

    def _changed(self) -> bool:
        """Return whether a file has changed since it was read; look once a second."""
        now = time.monotonic()
        if now < self._look_at:
            return False
        self._look_at = now + LOOK_INTERVAL_S
        if self._source.version() == self._version:
            return False
        with suppress(GatewayError):  # `refresh` says what is wrong
            self._load()
            return True
        return False
