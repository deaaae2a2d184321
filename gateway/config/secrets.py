"""Secrets that the gateway generates for itself, and secrets that the configuration names as `${file:PATH}`.

A secret of the gateway is in a file of its own, or given by the environment.

A file that the configuration names holds one secret on one line; line ends behind it do not count. A message says what is wrong
with a file with its path, and never with its content. A relative path starts at the folder of the configuration.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from gateway.base import durable
from gateway.base.errors import Misconfigured, cannot_use

MIN_BYTES: Final = 16

PREFIX: Final = "file:"
MAX_BYTES: Final = 16 * 1024
MAX_TOTAL: Final = 256 * 1024
"""Bytes of all secrets of a configuration, and of their paths."""
MAX_SHOWN: Final = 256
"""Characters of a path that an error repeats."""
REFERENCE: Final = re.compile(rb"\$\{file:([^}\r\n]+)\}")


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


class SecretFiles:
    """The secrets of one reading of a configuration, by path as it is written there. Each file is read once."""

    def __init__(self, folder: Path, known: Mapping[str, str] | None = None) -> None:
        """Read files beside `folder`; or none, where all secrets are `known`."""
        self._folder = folder
        self._known = known
        self.read: dict[str, str] = {}

    def get(self, path: str) -> str:
        """Return the secret in a file. Raises `ValueError`, which names the path and what to do."""
        if path not in self.read:
            self.read[path] = self._secret(path)
            if sum(len(key) + len(value.encode()) for key, value in self.read.items()) > MAX_TOTAL:
                raise ValueError(f"the files of secrets hold more than {MAX_TOTAL} bytes together")
        return self.read[path]

    def _secret(self, path: str) -> str:
        if not path.strip():
            raise ValueError("name a file, as in ${file:/run/secrets/NAME}")
        if self._known is not None:
            if path not in self._known:
                raise ValueError(f"the file {_shown(path)} was not read with this configuration; reload it")
            return self._known[path]
        try:
            raw = durable.read(self._folder / path, MAX_BYTES)
        except FileNotFoundError:
            raise ValueError(f"the file {_shown(path)} is missing; create it, or name another") from None
        except (OSError, ValueError) as error:
            if getattr(error, "errno", 0) == errno.EFBIG:
                raise ValueError(f"the file {path} is larger than {MAX_BYTES} bytes; a secret is one line") from None
            reason = getattr(error, "strerror", None) or error
            raise ValueError(
                f"the file {_shown(path)} cannot be read ({reason}); name one that this user may read"
            ) from None
        return _text(raw, path)


def paths_in(raw: bytes, folder: Path) -> tuple[Path, ...]:
    """Return the files of secrets that a configuration names, each once."""
    names = dict.fromkeys(match[1].decode("utf-8", "surrogateescape") for match in REFERENCE.finditer(raw))
    return tuple(folder / name for name in names if "\0" not in name)


def _shown(path: str) -> str:
    """Return a path for an error, shortened where it is no path that a person wrote."""
    return path if len(path) <= MAX_SHOWN else f"{path[:MAX_SHOWN]}... ({len(path)} characters)"


def _text(raw: bytes, path: str) -> str:
    try:
        text = raw.decode("utf-8-sig").rstrip("\r\n")
    except UnicodeDecodeError:
        raise ValueError(f"the file {path} is not text in UTF-8; a secret is one line of text") from None
    if not text.strip():
        raise ValueError(f"the file {path} is empty; write the secret into it")
    if "\n" in text or "\r" in text:
        raise ValueError(f"the file {path} has several lines; a secret is one line")
    if not text.isprintable():
        raise ValueError(f"the file {path} has control characters; a secret is one line of text")
    return text
