"""The end of open requests whose token was deleted, disabled or has expired, or whose account was suspended or closed.

1. **A message ends nothing by itself.** It causes the account's tokens to be read again, and only what the store says there
   ends a request. While the store does not answer, nothing is ended but what has expired.
2. **A lost message delays, and no more.** All that is open is checked when the subscription was opened, once a second while it
   is not heard, and otherwise in turn, every account once in `ROUND` intervals.
3. **A request costs nothing here** but its place in the runner's set.

The subscription of a worker is opened again when it is lost. It may be cut off from the store without an error, so it is tested
with messages of its own, published on the connection of the store's commands: what the commands reach is what the subscription
hears.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Container, Iterator, Mapping
from itertools import islice
from typing import Final

from gateway.base.errors import GatewayError, StoreAway, StoreError
from gateway.base.ids import new_id
from gateway.base.log import log
from gateway.domain.exchange import Exchange
from gateway.proxy.lifecycle import ExchangeRunner
from gateway.runtime.process import BackgroundTask
from gateway.store.client.client import Client
from gateway.store.client.subscription import Subscription
from gateway.store.revocations import CHANNEL, EXPIRED, Revocation, Revocations, has_expired
from gateway.store.tokens import Authenticated

INTERVAL_S: Final = 1.0
"""Seconds between two checks of the open exchanges."""
ROUND: Final = 30
"""In how many intervals each account is checked once although nothing was announced."""
AGAIN_S: Final = 1.0
"""An account is checked again so long after a message: a token may have been read before it for a request that is not known yet."""
WARNED_AFTER: Final = 3
"""Tests of the subscription that fail in a row before that is logged."""
BATCH: Final = 100
"""Accounts that are read at once."""
SLICE: Final = 256
"""Open requests that are looked at in one go."""
PAUSE_S: Final = 0.02
"""The pause between two batches, which leaves the loop and the store to the requests."""

RETURN_S: Final = 0.4
"""How long a message to itself may take before the subscription counts as not heard."""
SILENT_S: Final = 2.5
"""A subscription on which nothing arrives for so long is opened again. Tests come more often."""
NEWS_PAUSE_S: Final = 0.2
"""The pause between two attempts to subscribe."""


class RevocationWatch(BackgroundTask):
    """Ends the open requests of one worker whose tokens are revoked."""

    def __init__(self, runner: ExchangeRunner, client: Client, news: RevocationNews) -> None:
        self._runner = runner
        self._revocations = Revocations(client)
        self._news = news
        self._due: dict[str, None] = {}
        """Accounts to check, the first one first."""
        self._again: deque[tuple[float, str]] = deque()
        self._expiries: dict[str, int] = {}
        """When open tokens expire, as far as they were read again since their requests came."""
        self._turn = 0
        self._unheard = 0

    async def look(self) -> None:
        """Do the work of one interval: test the subscription, and look through a part of the accounts. Raises `StoreAway`."""
        self._turn = (self._turn + 1) % ROUND
        now = asyncio.get_running_loop().time()
        while self._again and self._again[0][0] <= now:
            self._due[self._again.popleft()[1]] = None
        heard = True
        try:
            heard = await self._news.test()
            self._note(heard)
        finally:
            await self._look_through(self._turn if heard else None)

    async def check_due(self) -> None:
        """Read the due accounts; end exchanges of revoked tokens. Raises `StoreAway` and `StoreError`; unread accounts stay due."""
        self._take_news()
        while self._due:
            tokens = self._open_tokens(self._due)
            self._due = dict.fromkeys(account for account in self._due if account in tokens)
            while self._due and not self._news.happened.is_set():
                batch = list(islice(self._due, BATCH))
                asked = {account: tokens[account] for account in batch}
                self._end(await self._revocations.find(asked, self._expiries))
                for account in batch:
                    del self._due[account]
                if self._due:
                    await asyncio.sleep(PAUSE_S)
            self._take_news()

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

    def _take_news(self) -> None:
        """Make the announced accounts due first, and all accounts with open exchanges where an announcement may have been lost."""
        accounts, missed = self._news.take()
        again_at = asyncio.get_running_loop().time() + AGAIN_S
        self._again.extend((again_at, account) for account in accounts)
        self._due = dict.fromkeys(accounts) | self._due
        if missed:
            self._due |= dict.fromkeys(token.account.id for _, token in self._open())

    def _end(self, revoked: Mapping[str, Revocation]) -> None:
        """End the open requests with these tokens."""
        ended = Counter[str]()
        for exchange, token in self._open() if revoked else ():
            if revocation := revoked.get(token.token.id):
                exchange.stop(revocation.error())
                ended[token.token.id] += 1
        for token_id, requests in ended.items():
            log.info("requests_revoked", token=token_id, code=revoked[token_id].code, requests=requests)

    def _note(self, heard: bool) -> None:
        """Log once that announcements do not arrive, and that they do again."""
        if heard and self._unheard >= WARNED_AFTER:
            log.info("revocations_heard")
        self._unheard = 0 if heard else self._unheard + 1
        if self._unheard == WARNED_AFTER:
            log.warning("revocations_not_heard", checked_every_s=INTERVAL_S)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        look_at = loop.time() + INTERVAL_S
        while True:
            try:
                if loop.time() >= look_at:
                    look_at = loop.time() + INTERVAL_S
                    await self.look()
                await self.check_due()
            except StoreAway:
                pass  # what is due is checked when the store answers again
            except Exception:
                log.exception("revocations_not_checked")
            await self._wait(look_at - loop.time())

    async def _wait(self, seconds: float) -> None:
        """Wait for news, for this long at most."""
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await self._news.happened.wait()
        except TimeoutError:
            pass


class RevocationNews(BackgroundTask):
    """Collects the accounts in which something was revoked. `happened` is set when there is something to look at."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._own = f"gw:echo:{new_id()}"
        self._subscription = Subscription(client, (CHANNEL, self._own), self._on_message)
        self._tests = 0
        self._returned = asyncio.Event()
        self.happened = asyncio.Event()
        self.accounts: set[str] = set()
        self.missed = False
        """Whether messages may have been lost: the subscription was opened, perhaps not for the first time."""

    def take(self) -> tuple[set[str], bool]:
        """Return the accounts since the last call, and whether messages may have been lost."""
        taken = self.accounts, self.missed
        self.accounts, self.missed = set(), False
        self.happened.clear()
        return taken

    async def test(self) -> bool:
        """Return whether a message arrives. Raises `StoreAway` where the store does not answer."""
        self._tests += 1
        self._returned.clear()
        try:
            await self._client.call("PUBLISH", self._own, self._tests)
            async with asyncio.timeout(RETURN_S):
                await self._returned.wait()
        except (TimeoutError, StoreError):  # an error: the store's user may not publish
            return False
        return True

    def _on_message(self, channel: str, text: bytes) -> None:
        if channel == CHANNEL:
            self.accounts.add(text.decode(errors="replace"))
            self.happened.set()
        elif text == b"%d" % self._tests:
            self._returned.set()

    def _on_subscribed(self) -> None:
        self.missed = True
        self.happened.set()

    async def _run(self) -> None:
        while True:
            try:
                await self._subscription.listen(self._on_subscribed, SILENT_S)
            except StoreAway:
                pass
            except GatewayError as error:  # the store's user may not subscribe
                log.debug("subscription_refused", reason=str(error))
            except Exception:
                log.exception("subscription_failed")
            await asyncio.sleep(NEWS_PAUSE_S)
