"""The pepper, with which the secrets of tokens are hashed: from the environment, or a file that is made once.

Another pepper would make every token invalid. So the store has the fingerprint of the one in use (`PepperRecord`), and a file
that is missing is not made again. Beside it there may be the one before, whose tokens are accepted for a time.

1. **Tokens are made with the pepper whose fingerprint the store has**, by every gateway and command, or not at all.
2. **A change of the pepper is one write**, which is made only where nothing else changed it meanwhile.
3. A text is tried with the present pepper first: where only one is accepted, which is nearly always, nothing else is computed.
4. What is accepted is read again now and then by `Peppers.refresh`, so a change takes effect without a restart. A file that
   changed is also looked at when a text cannot be read, once a second at most: the first token of another pepper is accepted at
   once.

A rotation gives every gateway both peppers first, and then the store says that the next one is in use. Each step may be repeated
after a crash: a next pepper that was written and not recorded yet is *pending*, and is recorded by the next run.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec

from gateway.base import durable
from gateway.base.errors import GatewayError, Misconfigured, cannot_use
from gateway.base.ids import utc
from gateway.base.log import log
from gateway.config.secrets import random_text, secret_of
from gateway.store.client.client import Client, Script
from gateway.store.token_format import TokenCodec

FINGERPRINT: Final = "gw:pepper"
"""The key that has the store's record: a hash."""
VARIABLE: Final = "GATEWAY_PEPPER"
OLD_VARIABLE: Final = "GATEWAY_PEPPER_OLD"

LOOK_INTERVAL_S: Final = 1.0

LOST: Final = "if it is lost: `gateway pepper rotate --lost`, which voids every token"
_CHANGE: Final = Script.load(Path(__file__).with_name("pepper_change.lua"))


def make_pepper(data: Path) -> None:
    """Make the file `pepper` with mode 0600, unless there is a pepper. Raises `Misconfigured`."""
    secret_of(data / "pepper", VARIABLE)


def fingerprint_of(pepper: bytes) -> bytes:
    """Return the fingerprint of a pepper, a part of a hash: the store keeps it, and no pepper can be computed from it."""
    return hmac.new(pepper, b"fingerprint of the pepper", hashlib.sha256).hexdigest()[:16].encode()


class PepperSource:
    """Where a gateway with a data folder has its peppers from. `name` says in errors where the pepper is.

    Gateways on several machines that share a store need the same pepper: set the environment variable.
    """

    def __init__(self, data: Path) -> None:
        self._file, self._old_file = data / "pepper", data / "pepper.old"
        self.name = f"${VARIABLE}" if VARIABLE in os.environ else str(self._file)

    def __call__(self) -> bytes:
        """Return the pepper. Raises `Misconfigured` for one that is shorter than 16 bytes, and where the file is missing."""
        return secret_of(self._file, VARIABLE, create=False)

    def old(self) -> bytes | None:
        """Return the pepper before, None where there is none. Raises `Misconfigured` for what cannot be one."""
        given = OLD_VARIABLE in os.environ or self._old_file.exists()
        return secret_of(self._old_file, OLD_VARIABLE, create=False) if given else None

    def version(self) -> object:
        """Return what changes when a file does."""
        return durable.version(self._file), durable.version(self._old_file)


class Peppers:
    """The peppers of one process, and what the store says of them."""

    def __init__(self, client: Client, source: PepperSource) -> None:
        """Read the source when it is first needed: operations that concern no secret work without it."""
        self._client = client
        self._source = source
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
        """Return a token's digest as the store's records have it; a random one, which fits no record, for an unknown pepper."""
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
        """Read the accepted peppers again, and return whether they have changed. Raises `StoreAway`.

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


@contextmanager
def changing(data: Path) -> Iterator[None]:
    """Let no other command change the pepper of this data folder meanwhile. Raises `GatewayError` where one does."""
    folder = os.open(data, os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise GatewayError("another `gateway pepper rotate` runs with this data folder: let it end first") from None
        yield
    finally:
        os.close(folder)


def is_pending(record: PepperRecord, source: PepperSource) -> bool:
    """Return whether the data folder has a new pepper that the store has not recorded yet."""
    return fingerprint_of(source()) != record.fingerprint


def write_next(data: Path) -> None:
    """Write another pepper to the data folder, and keep the present one beside it. Raises `GatewayError`."""
    path = data / "pepper"
    try:
        durable.write(data / "pepper.old", durable.read(path), mode=0o600)
        durable.write(path, f"{random_text()}\n".encode(), mode=0o600)
    except OSError as error:
        raise cannot_use(f"data: cannot write {path}", error) from None


async def record_next(client: Client, data: Path, until: int) -> bool:
    """Record the pepper of the data folder, and the end of the one before. Return whether the store had that one."""
    source = PepperSource(data)
    old = source.old()
    if old is None:
        raise GatewayError("there is no pepper before: see `gateway pepper show`")
    before = fingerprint_of(old)
    return await change(client, before, fingerprint_of(source()), before, until)


async def replace(client: Client, data: Path) -> None:
    """Record the pepper of the data folder, which is made where it is missing, in place of one that is lost."""
    own = fingerprint_of(secret_of(data / "pepper", VARIABLE))
    while (record := await record_of(client)) is None or record.fingerprint != own:
        await change(client, record.fingerprint if record else b"", own)
