"""Relative paths of the file start at its own folder, wherever a command runs."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote

SHIPPED: Final = Path(str(files("gateway"))) / "shipped"
"""The folder of the example files in an installed package."""
IN_URL: Final = re.compile(r"(?<=[?&])(ssl_ca_certs|ssl_certfile|ssl_keyfile)=([^&]+)")


def folder_of(path: Path) -> Path:
    """Return where the relative paths of a file start: at its folder. Those of an installed package count as if in `./config`."""
    folder = path.absolute().parent
    return Path("config").absolute() if folder == SHIPPED else folder


def make_absolute(folder: Path, data: dict[str, Any]) -> None:
    """Make the relative paths of a file in `folder` absolute, in its plain data. What is no path is left to be refused."""
    data.setdefault("data", "./data")
    channels = data.get("channels")
    places = [(data, "data"), (data.get("tls"), "certificate"), (data.get("tls"), "key")]
    places += [(each, "ca_file") for each in (channels.values() if isinstance(channels, Mapping) else ())]
    for section, name in places:
        if isinstance(section, dict) and isinstance(path := section.get(name), str) and (path or section is data):
            section[name] = _absolute(folder, path)
    if isinstance(data.get("redis"), str):
        data["redis"] = IN_URL.sub(
            lambda match: f"{match[1]}={quote(_absolute(folder, unquote(match[2])))}", data["redis"]
        )


def _absolute(folder: Path, path: str) -> str:
    return os.path.abspath(folder / Path(path).expanduser())  # noqa: PTH100 - links stay as they are named
