"""The folder of the configuration's `data:` setting."""

from __future__ import annotations

from pathlib import Path

from gateway.config.schema import Config
from gateway.errors import Misconfigured


def data_folder(config: Config) -> Path:
    """Return the folder that `data:` names; create it, for its owner alone, where it is missing. Raises `Misconfigured`."""
    folder = config.data_path
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise Misconfigured(f"data: cannot make {folder}: {error.strerror}; change `data:`") from None
    return folder
