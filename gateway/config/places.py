"""Where the configuration file is, and where its relative paths start: at its own folder, wherever a command runs."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote

from gateway.errors import Misconfigured

SHIPPED: Final = Path(__file__).parents[1] / "shipped"
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
            section[name] = absolute(folder, path)
    if isinstance(data.get("redis"), str):
        data["redis"] = IN_URL.sub(
            lambda match: f"{match[1]}={quote(absolute(folder, unquote(match[2])))}", data["redis"]
        )


def absolute(folder: Path, path: str) -> str:
    """Return a path that starts at a folder, unless it starts at the root or at the home of a user."""
    return os.path.abspath(folder / Path(path).expanduser())  # noqa: PTH100 - links stay as they are named


def find(explicit: Path | None, environment: Mapping[str, str] | None = None) -> Path:
    """Return the path of the file to use: `explicit`, `$GATEWAY_CONFIG`, `./gateway.yaml`, or the demo's."""
    return named(explicit, environment) or shipped("demo.yaml")


def named(explicit: Path | None, environment: Mapping[str, str] | None = None) -> Path | None:
    """Return what `find` does, and None for the demo's."""
    given = (os.environ if environment is None else environment).get("GATEWAY_CONFIG")
    if explicit is not None or given:
        return explicit or Path(str(given))
    here = Path("gateway.yaml")
    return here if here.exists() else None


def shipped(name: str) -> Path:
    """Return the path of a file of config/, in the installed package or in a checkout."""
    for folder in (SHIPPED, SHIPPED.parents[1] / "config"):
        if (folder / name).exists():
            return folder / name
    raise Misconfigured(f"the installation lacks {name}: install the package again")
