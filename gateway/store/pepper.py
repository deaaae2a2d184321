"""The pepper: the secret without which a copy of the store is of no use to guess or forge tokens with."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path
from typing import Final

from gateway.errors import Misconfigured

SHORTEST: Final = 16
VARIABLE: Final = "GATEWAY_PEPPER"


def pepper_of(data: Path) -> bytes:
    """The pepper from `$GATEWAY_PEPPER`, else from the file `pepper` in `data`, made on first use, mode 0600.

    Gateways on several machines that share a store need the same one: give it by the environment. Whoever
    loses it has to make all tokens anew. Raises `Misconfigured` for one that is shorter than 16 bytes.
    """
    given = os.environ.get(VARIABLE)
    if given is not None:
        return _checked(given.encode(), f"${VARIABLE}")
    path = data / "pepper"
    try:
        if not path.exists():
            _make(path)
        return _checked(path.read_bytes().strip(), str(path))
    except OSError as error:
        raise Misconfigured(f"{path}: {error.strerror}; make `data` writable, or set ${VARIABLE}") from None


def _make(path: Path) -> None:
    """Write a pepper whole under another name, then give it the name unless another process was first."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = path.with_name(f"pepper.{secrets.token_hex(8)}")
    try:
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:  # noqa: PTH123
            file.write(secrets.token_urlsafe(32) + "\n")
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            path.hardlink_to(draft)
    finally:
        draft.unlink(missing_ok=True)


def _checked(pepper: bytes, place: str) -> bytes:
    if len(pepper) < SHORTEST:
        raise Misconfigured(f"{place}: a pepper of {len(pepper)} bytes is too short; use 16 random bytes or more")
    return pepper
