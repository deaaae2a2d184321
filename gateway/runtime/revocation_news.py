"""The news of revocations in a worker: a subscription that is opened again when it is lost, and tested with messages of its own.

A subscription may be cut off from the store without an error. So this publishes a message to itself with each test, on the
connection of the store's commands: what the commands reach is what the subscription hears.
"""

from __future__ import annotations

import asyncio
from typing import Final

from gateway.errors import GatewayError, StoreAway, StoreError
from gateway.log import Logger
from gateway.request_id import new_id
from gateway.runtime.background import BackgroundTask
from gateway.store.client.client import Client
from gateway.store.client.subscription import Subscription
from gateway.store.revocations import CHANNEL

RETURN_S: Final = 0.4
"""How long a message to itself may take before the subscription counts as not heard."""
SILENT_S: Final = 2.5
"""A subscription on which nothing arrives for so long is opened again. Tests come more often."""
PAUSE_S: Final = 0.2
"""The pause between two attempts to subscribe."""

log = Logger("gateway.runtime.revocation_news")


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
            await asyncio.sleep(PAUSE_S)
