"""The record of a token as the store keeps it."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from gateway.store.known_tokens import Token

OPTIONAL: Final = ("budgets", "limits")
LINKS: Final = ("replaces", "replaced_by", "counts_as")
"""What a record has only where the token has it: every request sends the record, and most tokens have none of them."""


class Record(msgspec.Struct, frozen=True):
    """A token with the digest of its secret."""

    digest: bytes
    token: Token

    def replaced(self, **changes: object) -> Record:
        """Return the record with other fields of the token."""
        return Record(self.digest, msgspec.structs.replace(self.token, **changes))


decode: Final = msgspec.json.Decoder(Record).decode


def encode(record: Record) -> bytes:
    """Return the bytes from which `decode` makes the same record."""
    fields: dict[str, Any] = msgspec.to_builtins(record)
    token = fields["token"]
    for name in OPTIONAL:
        token[name] = {field: value for field, value in token[name].items() if value is not None}
        if not token[name]:
            del token[name]
    for name in LINKS:
        if not token[name]:
            del token[name]
    return msgspec.json.encode(fields)


def token_of(record: bytes) -> Token:
    """Return the token of a record."""
    return decode(record).token


def tokens_key(account: str) -> str:
    """Return the Redis key of an account's tokens."""
    return f"gw:{{{account}}}:tokens"
