"""The claim of one gateway on its data folder, so that a second one is refused at once and says who is there."""

from __future__ import annotations

import contextlib
import fcntl
import os
from datetime import datetime
from pathlib import Path
from typing import Final

from gateway.errors import GatewayError, cannot_use

NAME: Final = "gateway.lock"


class Claim:
    """A lock of this process on the data folder. Its children do not inherit it, and it ends with the process."""

    def __init__(self, folder: Path) -> None:
        """Take the lock. Raises `GatewayError` where a gateway has it, and `Misconfigured` where the file cannot be used."""
        path = folder / NAME
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise cannot_use(f"data: cannot use {path}", error) from None
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.read(self._file, 200).decode(errors="replace").strip()
            os.close(self._file)
            raise GatewayError(
                f"data: this very gateway already runs ({holder or 'just started'}) with {folder}: stop it, or give each its own "
                "`data:`"
            ) from None
        since = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M:%S %z")
        with contextlib.suppress(OSError):  # a full disk
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, f"pid {os.getpid()}, since {since}\n".encode(), 0)

    def release(self) -> None:
        """Release the lock. The file stays."""
        os.close(self._file)
