"""The desk at which operations are done in this process: with the store, the configuration, and who asks."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from gateway.config.schema import Loaded
from gateway.errors import Refused
from gateway.management.audit_lines import Change, audited
from gateway.management.bounded import check_rate
from gateway.management.operation import Arguments, Operation, Scope
from gateway.store.audit_log import CALLERS, OPERATORS

if TYPE_CHECKING:
    from gateway.services import Store

ALL_SCOPES: Final = frozenset(Scope)


class Actor(msgspec.Struct, frozen=True):
    """Who asks: a management token, a person at a page, or a command of a user of the machine. `name` is kept in the audit log.

    `token`: the id of the management token that this follows from, or empty. `account`: of a caller at its own pages, or empty.
    """

    name: str
    scopes: AbstractSet[Scope] = ALL_SCOPES
    token: str = ""
    account: str = ""

    def need(self, scope: Scope) -> None:
        """Raise `Refused` (403) where this actor does not have the scope."""
        if scope not in self.scopes:
            own = ", ".join(sorted(self.scopes))
            raise Refused(403, "scope_missing", f"This needs the scope `{scope}`, which is not one of yours: {own}.")


class RefusedReload(msgspec.Struct, frozen=True):
    """Why the last change of the file was not taken up, and when, in seconds since 1970."""

    reason: str
    at: float


class Running(msgspec.Struct, frozen=True):
    """What only a running gateway knows: how many configurations it has served, and the last one that it did not take up."""

    generation: int
    refused: RefusedReload | None = None


class LocalDesk:
    """Does operations in this process, after the check of the actor's scope, with lines in the audit log for those that write."""

    def __init__(
        self, loaded: Loaded, store: Store, actor: Actor, key: str = "", *, running: Running | None = None
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
        self.change = Change()

    @property
    def usage_folder(self) -> Path:
        """The folder of the usage log."""
        return self.config.data_path / "usage"

    async def perform(self, operation: Operation[Any, Any], arguments: Arguments) -> Any:
        """Do an operation. Raises `Refused` (403) without its scope, and what the operation raises."""
        self.actor.need(operation.scope)
        own = LocalDesk(self.loaded, self.store, self.actor, self.key, running=self.running)
        if not operation.audited:
            return await operation.run(own, arguments)
        if operation.most_a_minute:
            actor = self.actor.token or self.actor.name
            await check_rate(self.store.client, operation.name, actor, operation.most_a_minute)
        part = CALLERS if self.actor.account else OPERATORS
        async with audited(self.store.client, self.actor.name, operation.name, arguments, part) as own.change:
            return await operation.run(own, arguments)
