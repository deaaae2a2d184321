"""The token of the admin port: from the environment, or from a file that is followed, so that it can be changed while it serves."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from gateway.config.schema import Config
from gateway.config.secrets import secret_of
from gateway.errors import GatewayError
from gateway.log import Logger

VARIABLE: Final = "GATEWAY_ADMIN_TOKEN"

log = Logger("gateway.management.admin_token")


def token_of(config: Config, *, create: bool = True) -> str:
    """Return the admin port's token: `$GATEWAY_ADMIN_TOKEN`, else the file `admin.token` in `data`.

    The file is created where it is missing. Raises `Misconfigured` for a token that is too short, and without `create` for a file
    that is missing.
    """
    return secret_of(_path(config), VARIABLE, create=create).decode("utf-8", "replace")


def has_token(config: Config) -> bool:
    """Return whether there is a token, so that `token_of` makes none."""
    return VARIABLE in os.environ or _path(config).exists()


class AdminToken:
    """The token as its file has it now. A file that cannot be used changes nothing, and is logged once."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._token = token_of(config)
        self._version = self._look()

    def __call__(self) -> str:
        """Return the token."""
        version = self._look()
        if version != self._version:
            self._version = version
            try:
                self._token = token_of(self._config, create=False)
                log.info("admin_token_renewed")
            except GatewayError as error:
                log.error("admin_token_refused", reason=str(error))
        return self._token

    def _look(self) -> tuple[int, ...] | None:
        try:
            status = _path(self._config).stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_size


def _path(config: Config) -> Path:
    return config.data_path / "admin.token"
