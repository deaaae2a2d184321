"""The pepper, with which the secrets of tokens are hashed: from the environment, or a file that is made once.

Another pepper would make every token invalid. So the store has the fingerprint of the one in use, see
`gateway.store.pepper_record`, and a file that is missing is not made again. Beside it there may be the one before, whose tokens
are accepted for a time.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from gateway.config.secrets import secret_of

VARIABLE: Final = "GATEWAY_PEPPER"
OLD_VARIABLE: Final = "GATEWAY_PEPPER_OLD"


def pepper_of(data: Path) -> bytes:
    """Return the pepper from `$GATEWAY_PEPPER`, else from the file `pepper` in `data`.

    Gateways on several machines that share a store need the same one: set the environment variable. Raises `Misconfigured` for
    one that is shorter than 16 bytes, and where the file is missing.
    """
    return secret_of(data / "pepper", VARIABLE, create=False)


def old_pepper_of(data: Path) -> bytes | None:
    """Return the pepper before, from `$GATEWAY_PEPPER_OLD`, else from the file `pepper.old`; None where there is none.

    Raises `Misconfigured` for what cannot be one.
    """
    path = data / "pepper.old"
    return secret_of(path, OLD_VARIABLE, create=False) if OLD_VARIABLE in os.environ or path.exists() else None


def make_pepper(data: Path) -> None:
    """Make the file `pepper` with mode 0600, unless there is a pepper. Raises `Misconfigured`."""
    secret_of(data / "pepper", VARIABLE)


def fingerprint_of(pepper: bytes) -> bytes:
    """Return what the store has of a pepper: a part of a hash, from which it cannot be computed."""
    return hmac.new(pepper, b"fingerprint of the pepper", hashlib.sha256).hexdigest()[:16].encode()


class PepperSource:
    """Where a process has its peppers from. Called, it returns the present one."""

    def __init__(
        self,
        current: Callable[[], bytes],
        old: Callable[[], bytes | None] = lambda: None,
        version: Callable[[], object] = lambda: None,
        name: str = "",
    ) -> None:
        """`version` changes when a file does; `name` says in errors where the pepper is."""
        self._current = current
        self.old = old
        self.version = version
        self.name = name or "the one here"

    def __call__(self) -> bytes:
        return self._current()

    @classmethod
    def of(cls, data: Path) -> PepperSource:
        """Return the source of a gateway with this data folder."""
        name = f"${VARIABLE}" if VARIABLE in os.environ else str(data / "pepper")
        return cls(partial(pepper_of, data), partial(old_pepper_of, data), partial(_version, data), name)


def _version(data: Path) -> object:
    found: list[tuple[int, ...]] = []
    for name in ("pepper", "pepper.old"):
        with suppress(OSError):
            status = (data / name).stat()
            found.append((status.st_ino, status.st_mtime_ns, status.st_ctime_ns))
    return found
