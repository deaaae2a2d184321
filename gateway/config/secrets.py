"""Secrets that the gateway makes for itself: each in a file of its own, or given by the environment."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path
from typing import Final

from gateway.errors import Misconfigured

SHORTEST: Final = 16


def secret_of(path: Path, variable: str) -> bytes:
    """The secret from the environment's `variable`, else from the file, made on first use, mode 0600.

    Raises `Misconfigured` for one that is shorter than 16 bytes, and for a file that cannot be read or made.
    """
    given = os.environ.get(variable)
    if given is not None:
        return _checked(given.encode(), f"${variable}")
    try:
        if not path.exists():
            _make(path)
        return _checked(path.read_bytes().strip(), str(path))
    except OSError as error:
        raise Misconfigured(f"{path}: {error.strerror}; make `data` writable, or set ${variable}") from None


def _make(path: Path) -> None:
    """Write a secret whole under another name, then give it the name unless another process was first."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    try:
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:  # noqa: PTH123
            file.write(secrets.token_urlsafe(32) + "\n")
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            path.hardlink_to(draft)
    finally:
        draft.unlink(missing_ok=True)


def _checked(secret: bytes, place: str) -> bytes:
    if len(secret) < SHORTEST:
        raise Misconfigured(f"{place}: a secret of {len(secret)} bytes is too short; use 16 random bytes or more")
    return secret
