"""Secrets that the gateway generates for itself: each is in a file of its own, or given by the environment."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Final

from gateway import durable
from gateway.errors import Misconfigured, cannot_use

MIN_BYTES: Final = 16


def random_text() -> str:
    """Return a secret of 32 random bytes."""
    return secrets.token_urlsafe(32)


def secret_of(path: Path, variable: str, *, create: bool = True, generate: Callable[[], str] = random_text) -> bytes:
    """Return the secret in the environment's `variable`, else in the file, which is generated on first use, mode 0600.

    Raises `Misconfigured` for one that is shorter than 16 bytes, for a file that cannot be read or written, and without `create`
    for one that is missing; a full disk is a plain `GatewayError`.
    """
    given = os.environ.get(variable)
    if given is not None:
        return _checked(given.encode(), f"${variable}")
    try:
        if create and not path.exists():
            durable.make_folder(path.parent)
            durable.create(path, f"{generate()}\n".encode(), mode=0o600)
        return _checked(durable.read(path).strip(), str(path))
    except FileNotFoundError:
        raise Misconfigured(f"{path} is missing, and is not made anew: restore it, or set ${variable}") from None
    except OSError as error:
        raise cannot_use(str(path), error, cure=f"make `data` writable, or set ${variable}") from None


def _checked(secret: bytes, source: str) -> bytes:
    if len(secret) < MIN_BYTES:
        raise Misconfigured(f"{source}: a secret of {len(secret)} bytes is too short; use 16 random bytes or more")
    return secret
