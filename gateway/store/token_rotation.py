"""Replacing tokens by new ones, with a time in which both are accepted."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

import msgspec

from gateway.errors import StoreAway
from gateway.store.client.client import Script
from gateway.store.known_tokens import Token, TokenStatus
from gateway.store.token_changes import Created, MadeBefore, TokenChanges, TokenError
from gateway.store.token_record import Record, decode, encode, tokens_key

_ROTATE: Final = Script.load(Path(__file__).with_name("token_rotate.lua"))
_TRIES: Final = 3
"""Attempts of a rotation whose reply is lost."""


class TokenRotation(TokenChanges):
    """The tokens of one store, for those who manage and replace them. Every method may also raise `StoreAway`."""

    async def rotate(
        self, token_id: str, overlap_s: int, expires_at: int | None = None, *, short_id: str = ""
    ) -> Created:
        """Replace a token by another one with the same settings, and let the old one expire after `overlap_s`.

        The two count in the same budgets and limits, so that a token is not worth more for being replaced. The new one expires when
        the old one would have, or at `expires_at`. Raises `TokenError` for a token that does not exist, is disabled, has expired or
        was replaced already, and `MadeBefore` where it was replaced by the one of this `short_id`.
        """
        await self.check_pepper()
        account = token_id.rpartition("-")[0]
        made: dict[str, Created] = {}
        given = self._codec.make(account, short_id) if short_id else None
        for last in (False,) * (_TRIES - 1) + (True,):
            raw = await self._read(token_id)
            record = decode(raw)
            if short_id and record.token.replaced_by == f"{account}-{short_id}":
                successor = decode(await self._read(record.token.replaced_by))
                if given is None or successor.digest != self._codec.digest(given[1]):
                    raise MadeBefore(successor.token)
            if (done := made.get(record.token.replaced_by)) is not None:  # the reply was lost
                return done
            await self._check_account(account)
            old = record.token
            if old.replaced_by and not await self._client.call(
                "HEXISTS", tokens_key(account), old.replaced_by.rpartition("-")[2]
            ):
                old = _without_successor(old, expires_at)
            _check_replaceable(old, expires_at)
            now = int(time.time())
            chosen, text = given or self._codec.make(account)
            new = msgspec.structs.replace(
                old,
                id=f"{account}-{chosen}",
                created_at=now,
                expires_at=old.expires_at if expires_at is None else expires_at,
                last_used=None,
                replaces=old.id,
                counts_as=old.counts_as or old.id,
            )
            made[new.id] = Created(**msgspec.structs.asdict(new), token=text)
            ends_at = now + overlap_s if old.expires_at is None else min(old.expires_at, now + overlap_s)
            ended = encode(record.replaced(expires_at=ends_at, replaced_by=new.id))
            own = encode(Record(self._codec.digest(text), new))
            arguments = (old.id.rpartition("-")[2], raw, ended, chosen, own, account)
            try:
                if await self._client.run(_ROTATE, [tokens_key(account)], arguments):
                    return made[new.id]
            except StoreAway:
                if last:
                    raise
        raise TokenError(f"`{token_id}` is being changed by others: try again")


def _check_replaceable(token: Token, expires_at: int | None) -> None:
    """Raise `TokenError` for a token of which there can be no successor that works."""
    if token.replaced_by:
        raise TokenError(f"`{token.id}` was replaced by `{token.replaced_by}` already: rotate that one")
    if token.status is TokenStatus.DISABLED:
        raise TokenError(f"`{token.id}` is disabled: `gateway token enable {token.id}` first, or create another")
    if expires_at is None and token.expires_at is not None and token.expires_at <= time.time():
        raise TokenError(f"`{token.id}` has expired: say when the new one expires, as in `--expires 30d`")


def _without_successor(token: Token, expires_at: int | None) -> Token:
    """Return a token whose successor was deleted. It ends with the overlap, so the end of the next one must be given."""
    if expires_at is None:
        raise TokenError(
            f"`{token.id}` was replaced by `{token.replaced_by}`, which was deleted: say when the new one expires, as --expires 30d"
        )
    return msgspec.structs.replace(token, replaced_by="")
