"""The end of open requests whose token was deleted, disabled or has expired, or whose account was suspended or closed.

1. **An announcement ends nothing by itself.** It causes the account's tokens to be read again, and only what the store says there
   ends a request. While the store does not answer, nothing is ended but what has expired.
2. **A lost announcement delays, and no more.** All that is open is checked when the store answers again, and otherwise in turn,
   every account once in `ROUND` intervals.
3. **A request costs nothing here** but its place in the runner's set.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter, deque
from collections.abc import Container, Iterator, Mapping
from itertools import islice
from typing import Final

from gateway.base.errors import StoreAway
from gateway.base.log import log
from gateway.domain.exchange import Exchange
from gateway.proxy.lifecycle import ExchangeRunner
from gateway.runtime.process import BackgroundTask
from gateway.store.client.client import Client
from gateway.store.revocations import EXPIRED, Revocation, Revocations
from gateway.store.tokens import Authenticated, has_expired

INTERVAL_S: Final = 1.0
"""Seconds between two looks at what was announced, and at the open exchanges."""
ROUND: Final = 30
"""In how many intervals each account is checked once although nothing was announced."""
AGAIN_S: Final = 0.5
"""An account is checked again by the first look so long after its announcement: a token may have been read before it for a request
that is not known yet."""
BATCH: Final = 100
"""Accounts that are read at once."""
SLICE: Final = 256
"""Open requests that are looked at in one go."""
PAUSE_S: Final = 0.02
"""The pause between two batches, which leaves the loop and the store to the requests."""


class RevocationWatch(BackgroundTask):
    """Ends the open requests of one worker whose tokens are revoked."""

    def __init__(self, runner: ExchangeRunner, client: Client) -> None:
        self._runner = runner
        self._revocations = Revocations(client)
        self._seen = ""
        """The last announcement; empty before the first look."""
        self._due: dict[str, None] = {}
        """Accounts to check, the first one first."""
        self._again: deque[tuple[float, str]] = deque()
        self._expiries: dict[str, int] = {}
        """When open tokens expire, as far as they were read again since their requests came."""
        self._turn = 0

    async def look(self) -> None:
        """Do the work of one interval: read what was announced, and look through a part of the accounts. Raises `StoreAway`."""
        self._turn = (self._turn + 1) % ROUND
        now = asyncio.get_running_loop().time()
        while self._again and self._again[0][0] <= now:
            self._due[self._again.popleft()[1]] = None
        turn: int | None = None
        try:
            self._seen, accounts = await self._revocations.announced(self._seen)
            self._again.extend((now + AGAIN_S, account) for account in accounts)
            self._due = dict.fromkeys(accounts) | self._due
            turn = self._turn
        finally:
            await self._look_through(turn)

    async def check_due(self, until: float = math.inf) -> None:
        """Read the due accounts, the first one first, and end exchanges of revoked tokens. What is left at `until` stays due.

        Raises `StoreAway` and `StoreError`.
        """
        tokens = self._open_tokens(self._due)
        self._due = dict.fromkeys(account for account in self._due if account in tokens)
        while self._due:
            batch = list(islice(self._due, BATCH))
            self._end(await self._revocations.find({account: tokens[account] for account in batch}, self._expiries))
            for account in batch:
                del self._due[account]
            if asyncio.get_running_loop().time() >= until:
                return
            if self._due:
                await asyncio.sleep(PAUSE_S)

    async def _look_through(self, turn: int | None) -> None:
        """End the requests whose tokens have expired, and make the accounts of a turn due, or all. Leaves the loop to others."""
        exchanges = list(self._runner.exchanges)
        known, self._expiries = self._expiries, {}
        for start in range(0, len(exchanges), SLICE):
            expired: dict[str, Revocation] = {}
            for exchange in exchanges[start : start + SLICE]:
                if (token := exchange.get(Authenticated)) is None or exchange.stopped is not None:
                    continue
                if (read := known.get(token.token.id)) is not None:
                    self._expiries.setdefault(token.token.id, read)
                if has_expired(token.token.expires_at if read is None else read):
                    expired[token.token.id] = EXPIRED
                elif turn is None or hash(token.account.id) % ROUND == turn:
                    self._due[token.account.id] = None
            self._end(expired)
            await asyncio.sleep(0)

    def _open(self) -> Iterator[tuple[Exchange, Authenticated]]:
        """Yield the open requests with a token of this store."""
        for exchange in self._runner.exchanges:
            token = exchange.get(Authenticated)
            if token is not None and exchange.stopped is None:
                yield exchange, token

    def _open_tokens(self, accounts: Container[str]) -> dict[str, set[str]]:
        """Return the tokens in use of these accounts, by account."""
        found: dict[str, set[str]] = {}
        for _, token in self._open():
            if token.account.id in accounts:
                found.setdefault(token.account.id, set()).add(token.token.id)
        return found

    def _end(self, revoked: Mapping[str, Revocation]) -> None:
        """End the open requests with these tokens."""
        ended = Counter[str]()
        for exchange, token in self._open() if revoked else ():
            if revocation := revoked.get(token.token.id):
                exchange.stop(revocation.error())
                ended[token.token.id] += 1
        for token_id, requests in ended.items():
            log.info("requests_revoked", token=token_id, code=revoked[token_id].code, requests=requests)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            look_at = loop.time() + INTERVAL_S
            try:
                await self.look()
                await self.check_due(look_at)
            except StoreAway:
                pass  # what is due is checked when the store answers again
            except Exception:
                log.exception("revocations_not_checked")
            await asyncio.sleep(max(0.0, look_at - loop.time()))
