"""The folder of the configuration's `data:` setting."""

from __future__ import annotations

import contextlib
from pathlib import Path

from gateway import durable
from gateway.config.schema import Config
from gateway.errors import cannot_use


def data_folder(config: Config) -> Path:
    """Return the folder that `data:` names; create it, for its owner alone, where it is missing. Raises `Misconfigured`."""
    folder = config.data_path
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise cannot_use(f"data: cannot make {folder}", error, cure="change `data:`") from None
    return folder


def remove_leftovers(folder: Path) -> None:
    """Remove the temporary files that killed processes left in the data folder, and in the folders in it."""
    for place in (folder, folder / "journal", folder / "usage", folder / "usage" / "spool"):
        with contextlib.suppress(OSError):  # what is wrong with a folder is reported where it is used
            durable.remove_leftovers(place)
