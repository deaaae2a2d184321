"""The origins of pages that may call the public port (`port.cors_origins`)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

ORIGIN: Final = re.compile(r"https?://([a-z0-9_-]+(\.[a-z0-9_-]+)*|\[[0-9a-f:.]+\])(:[0-9]{1,5})?")
DEFAULT_PORT: Final = re.compile(r"http://.*:80|https://.*:443")
EVERY: Final = "`*` would let every page on the web send tokens here: name each origin, as in https://app.example"


def check_origins(origins: Iterable[str]) -> None:
    """Raise `ValueError` for what is no origin as browsers write it."""
    for origin in origins:
        if "*" in origin:
            raise ValueError(f"cors_origins: {EVERY}")
        bare = origin.lower().rstrip("/")
        if DEFAULT_PORT.fullmatch(bare):
            bare = bare.rpartition(":")[0]
        if not ORIGIN.fullmatch(bare):
            raise ValueError(f"cors_origins: `{origin}` is no origin; write scheme and host, as in https://app.example")
        if bare != origin:
            raise ValueError(f"cors_origins: browsers send `{bare}`, not `{origin}`; write it like this")
