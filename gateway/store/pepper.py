"""The pepper, with which the secrets of tokens are hashed: from the environment, or a file that is made once.

Another pepper would make every token invalid. So the store has the fingerprint of the one in use, and a file that is missing
is not made again where it has been used.
"""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path
from typing import Final

from gateway.config.secrets import secret_of
from gateway.errors import Misconfigured
from gateway.store.client.client import Client
from gateway.store.layout import FINGERPRINT

VARIABLE: Final = "GATEWAY_PEPPER"
USED: Final = Path("usage", "installation")
"""A file of the data folder that is there once a gateway has been started with it."""


def pepper_of(data: Path) -> bytes:
    """Return the pepper from `$GATEWAY_PEPPER`, else from the file `pepper` in `data`.

    Gateways on several machines that share a store need the same one: set the environment variable. Raises `Misconfigured` for
    one that is shorter than 16 bytes, and where the file is missing.
    """
    return secret_of(data / "pepper", VARIABLE, create=False)


def make_pepper(data: Path) -> None:
    """Make the file `pepper` in a folder that has never been used, with mode 0600. Raises `Misconfigured`."""
    if not (data / USED).exists():
        secret_of(data / "pepper", VARIABLE)


async def check(client: Client, pepper: bytes) -> None:
    """Check that the store's tokens were made with this pepper, and record it where there are none.

    Raises `Misconfigured` where they were made with another one, and `StoreAway`.
    """
    own = hmac.new(pepper, b"fingerprint of the pepper", hashlib.sha256).hexdigest()[:16].encode()
    known = await client.call("HGET", FINGERPRINT, "fingerprint")
    if known == own:
        return
    if known is None:
        await client.call("HSETNX", FINGERPRINT, "fingerprint", own)
    elif await _has_tokens(client):
        raise Misconfigured(
            f"the pepper is not the one with which the store's tokens were made: restore the file `pepper` from a backup, or set "
            f"${VARIABLE}; if it is lost, delete the tokens (`gateway token delete`) and make others"
        )
    else:
        await client.call("HSET", FINGERPRINT, "fingerprint", own)


async def _has_tokens(client: Client) -> bool:
    async for _ in client.keys("gw:{*}:tokens"):
        return True
    return False
