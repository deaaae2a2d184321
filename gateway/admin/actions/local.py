"""Client that does actions in this process: with the store, the configuration, and who asks.

An actor may do an action that hardly needs a right, and leaves lines in the audit log all the same, only so often.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

import msgspec

from gateway.admin.actions.action import Action, Actor, Arguments
from gateway.admin.actions.audit_log import CALLERS, OPERATORS, RecordedChange, audited
from gateway.alerts import event
from gateway.base.errors import Refused, StoreAway
from gateway.base.ids import EXTERNAL, new_id
from gateway.base.log import log
from gateway.config.schema import Loaded
from gateway.domain.facts import AccountLimits
from gateway.runtime.handover import RefusedReload
from gateway.store.limits import Limited, RateLimiter
from gateway.usage.home import Home, home_of

if TYPE_CHECKING:
    from gateway.chain.services import Store


_HAPPENED: Final = {
    "accounts.create": "created",
    "accounts.close": "closed",
    "tokens.create": "created",
    "tokens.rotate": "created",
    "tokens.disable": "disabled",
    "tokens.enable": "enabled",
    "tokens.delete": "deleted",
}
"""Actions that other programs are told of, and the second word of the event's type."""
_ONCE: Final = frozenset({"create", "rotate", "close", "delete"})


class GatewayState(msgspec.Struct, frozen=True):
    """What only a running gateway knows: how many configurations it has served, and the last one that it did not take up."""

    generation: int
    refused: RefusedReload | None = None


class LocalClient:
    """Does actions in this process, after the check of the actor's scope, with lines in the audit log for those that write."""

    def __init__(
        self, loaded: Loaded, store: Store, actor: Actor, key: str = "", *, running: GatewayState | None = None
    ) -> None:
        """`loaded`: the configuration as it is served. `key`: what a repeated request has in common with the first, or empty.

        `running`: None where no gateway is asked.
        """
        self.loaded = loaded
        self.config = loaded.config
        self.store = store
        self.actor = actor
        self.key = key
        self.running = running
        self.change = RecordedChange()

    @property
    def usage_home(self) -> Home:
        """The home of the usage log."""
        return home_of(self.config)

    async def perform(self, action: Action[Any, Any], arguments: Arguments) -> Any:
        """Do an action. Raises `Refused` (403) without its scope, and what the action raises."""
        self.actor.need(action.scope)
        arguments = await self._by_ids(arguments)
        own = LocalClient(self.loaded, self.store, self.actor, self.key, running=self.running)
        if not action.audited:
            return await action.run(own, arguments)
        if action.most_a_minute:
            actor = self.actor.token or self.actor.name
            await check_rate(self.store.limits, action.name, actor, action.most_a_minute)
        part = CALLERS if self.actor.account else OPERATORS
        async with audited(self.store.client, self.actor.name, action.name, arguments, part) as own.change:
            result = await action.run(own, arguments)
        await own.tell(action.name)
        return result

    async def tell(self, action: str) -> None:
        """Let the receivers of alerts know what an action did to an account or a token."""
        before, after = self.change.before, self.change.after
        what, _, done = action.partition(".")
        happened = _HAPPENED.get(action)
        if action == "accounts.change" and getattr(before, "status", "") != (status := getattr(after, "status", "")):
            happened = "resumed" if status == "active" else str(status)
        subject = str(getattr(after if after is not None else before, "id", ""))
        if not (happened and subject):
            return
        self.store.alerts.use(self.config.alerts)
        # A change may be made again and again, but a repeated request makes nothing twice.
        key = f"{what}:{subject}:{happened}:{'' if done in _ONCE else new_id()}"
        kind = what.removesuffix("s")
        about = {"account": subject.partition("-")[0]} | ({"token": subject} if kind == "token" else {})
        made = event.event(f"{kind}.{happened}", f"{kind} {subject} was {happened}", **about)
        try:
            await self.store.alerts.tell(made, key)
        except StoreAway as error:  # it is done, whoever hears of it
            log.warning("alert_lost", type=made.type, reason=str(error))

    async def _by_ids(self, arguments: Arguments) -> Arguments:
        """Return the arguments with the id of an account that is named by `ext:` and its external id. Raises `AccountError`."""
        path, query = arguments.path, arguments.query
        if path.get("account", "").startswith(EXTERNAL):
            path = {**path, "account": await self.store.external_ids.resolve(path["account"])}
        if query is not None and (getattr(query, "account", None) or "").startswith(EXTERNAL):
            account = await self.store.external_ids.resolve(query.account)  # type: ignore[attr-defined]
            query = msgspec.structs.replace(query, account=account)
        return Arguments(path, query, arguments.body)


async def check_rate(limits: RateLimiter, operation: str, actor: str, most: int) -> None:
    """Count that an actor does an action. Raises `Refused` (429) for more than `most` in a minute, and `StoreAway`."""
    owner, rules = f"actor-{sha256(actor.encode()).hexdigest()[:32]}", AccountLimits(requests_per_minute=most)
    taken = await limits.take(owner, new_id(), scope=operation, rules=rules, tokens=0, lease_ms=1)
    if isinstance(taken, Limited):
        wait_s = (taken.retry_after_ms or 0) / 1000
        raise Refused(429, "rate_limited", f"At most {most} of these a minute: wait, then retry.", retry_after_s=wait_s)
