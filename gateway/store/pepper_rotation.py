"""The change of the pepper: first every gateway has both, then the store says that the next one is in use.

1. Each step may be repeated after a crash: a next pepper that was written and not recorded yet is *pending*, and is recorded by
   the next run.
2. The pepper before is not deleted: the store says until when its tokens are accepted.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gateway.base import durable
from gateway.base.errors import GatewayError, cannot_use
from gateway.config.secrets import random_text, secret_of
from gateway.store.accounts import Accounts
from gateway.store.client.client import Client
from gateway.store.pepper import VARIABLE, PepperRecord, PepperSource, change, fingerprint_of, record_of
from gateway.store.tokens import Tokens


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
    source = PepperSource.of(data)
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


async def made_before(accounts: Accounts, tokens: Tokens, since: int) -> int:
    """Return how many tokens were made until `since`, in seconds since 1970."""
    count = 0
    async for account in accounts.all():
        count += sum(token.created_at <= since for token in await tokens.all_of(account.id))
    return count
