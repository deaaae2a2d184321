"""The name of an installation: of one data folder, on whatever host it is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final
from uuid import uuid4

from gateway import durable
from gateway.errors import Misconfigured, cannot_use

_NAME: Final = re.compile(r"[0-9a-f]{32}")
_SHORT: Final = slice(8)


def installation_of(folder: Path) -> str:
    """Return the name of this folder's installation, from a file made on first use. Raises `Misconfigured`."""
    path = folder / "installation"
    try:
        if not path.exists():
            durable.make_folder(folder)
            durable.create(path, uuid4().hex.encode())
        name = durable.read(path).decode(errors="replace").strip()
    except OSError as error:
        raise cannot_use(f"data: cannot use {path}", error) from None
    if not _NAME.fullmatch(name):
        raise Misconfigured(
            f"{path} is damaged: write the 32 digits there that `gateway gateways list --json` on another machine has for this "
            "host, or delete the file; then this folder is another gateway, and the one that it was is to be forgotten"
        )
    return name


def short(installation: str) -> str:
    """Return the part of an installation's name that records have."""
    return installation[_SHORT]
