"""The secret that alerts are signed with, and the signature, as Standard Webhooks 1.0 defines them.

A secret is `whsec_` and 24 to 64 bytes in base64. Several secrets sign together, so that one can be replaced by another without
an alert that the receiver cannot verify.
"""

from __future__ import annotations

import hmac
import os
from base64 import b64decode, b64encode
from collections.abc import Sequence
from hashlib import sha256
from typing import Final

from gateway.base.errors import Misconfigured
from gateway.config.schema import Config
from gateway.config.secrets import secret_of

VARIABLE: Final = "GATEWAY_ALERTS_SECRET"
PREFIX: Final = "whsec_"
MIN_BYTES: Final = 24
MAX_BYTES: Final = 64
MAX_SECRETS: Final = 4


def new_secret() -> str:
    """Return a random secret."""
    return PREFIX + b64encode(os.urandom(32)).decode()


def secrets_of(config: Config, receiver: str = "", *, create: bool = True) -> tuple[bytes, ...]:
    """Return the keys in `$GATEWAY_ALERTS_SECRET`, else in the file `alerts.secret` of `data`, which is made on first use.

    Those of another receiver are in `$GATEWAY_ALERTS_SECRET_NAME` or `alerts-name.secret`, so that none can sign for another.
    Raises `Misconfigured` for what is not a secret, and what `secret_of` raises.
    """
    path = config.data_path / (f"alerts-{receiver}.secret" if receiver else "alerts.secret")
    variable = f"{VARIABLE}_{receiver.upper()}" if receiver else VARIABLE
    words = secret_of(path, variable, create=create, generate=new_secret).decode(errors="replace").split()
    keys = tuple(map(_key, words))
    if None in keys or not 1 <= len(keys) <= MAX_SECRETS:
        source = f"${variable}" if variable in os.environ else str(path)
        raise Misconfigured(
            f"{source}: a secret is {PREFIX} and {MIN_BYTES} to {MAX_BYTES} bytes in base64; "
            f'make one with: echo "{PREFIX}$(openssl rand -base64 32)"'
        )
    return tuple(key for key in keys if key)


def sign(keys: Sequence[bytes], id: str, timestamp: int, body: bytes) -> str:  # noqa: A002 - the specification's name
    """Return the header `webhook-signature`: the signature with each key."""
    signed = f"{id}.{timestamp}.".encode() + body
    return " ".join(f"v1,{b64encode(hmac.digest(key, signed, sha256)).decode()}" for key in keys)


def _key(secret: str) -> bytes | None:
    """Return the key of a secret, None if it is not one."""
    if not secret.startswith(PREFIX):
        return None
    try:
        key = b64decode(secret.removeprefix(PREFIX), validate=True)
    except ValueError:
        return None
    return key if MIN_BYTES <= len(key) <= MAX_BYTES else None
