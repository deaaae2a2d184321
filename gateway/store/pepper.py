"""The pepper: the secret without which a copy of the store is of no use to guess or forge tokens with."""

from __future__ import annotations

from pathlib import Path

from gateway.config.secrets import secret_of


def pepper_of(data: Path) -> bytes:
    """The pepper from `$GATEWAY_PEPPER`, else from the file `pepper` in `data`, made on first use, mode 0600.

    Gateways on several machines that share a store need the same one: give it by the environment. Whoever
    loses it has to make all tokens anew. Raises `Misconfigured` for one that is shorter than 16 bytes.
    """
    return secret_of(data / "pepper", "GATEWAY_PEPPER")
