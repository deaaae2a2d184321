"""The action that lists alerts, and the events that other programs are told of: what was done to accounts and tokens."""

from __future__ import annotations

from itertools import chain
from typing import Final, Literal

import msgspec

from gateway.admin.actions.action import DEFAULT_PAGE, LongLimit, Page, Scope, action
from gateway.admin.actions.local import LocalClient
from gateway.alerts.event import Event, Outbox, OutboxEntry
from gateway.base.errors import GatewayError
from gateway.base.ids import utc

WAITING: Final = 1000
"""Events of a receiver that wait and are read for a list."""
MISSING: Final = "the configuration has no `alerts:`; add it, as in `alerts: {webhook: https://host/path}`"


class AlertLines(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How many alerts are listed, and in which state; null for all."""

    limit: LongLimit = DEFAULT_PAGE
    state: Literal["pending", "sent", "given_up"] | None = None


class ListedAlert(msgspec.Struct, frozen=True):
    """An alert on its way to a receiver. `receiver`: empty for the first one. `at`: when it happened, in UTC.

    `message`: what happened, and to whom. `due_at`: when a pending one is sent next; `ended_at`: when another was sent or given up.
    `error`: of the last attempt.
    """

    id: str
    type: str
    receiver: str
    state: Literal["pending", "sent", "given_up"]
    at: str
    message: str
    attempts: int
    error: str = ""
    due_at: str | None = None
    ended_at: str | None = None


@action("GET", "/alerts", Scope.READ)
async def list_(client: LocalClient, query: AlertLines) -> Page[ListedAlert]:
    """List alerts by receiver, newest first: what waits, and the last hundred that each receiver was sent or that were given up."""
    if client.config.alerts is None:
        raise GatewayError(MISSING).of_kind("not_found")
    found = chain.from_iterable([await _listed(client, name) for name in client.config.alerts.receivers])
    wanted = [each for each in found if query.state in (None, each.state)]
    return Page(sorted(wanted, key=lambda each: each.id, reverse=True)[: query.limit])


async def _listed(client: LocalClient, receiver: str) -> list[ListedAlert]:
    outbox = Outbox(client.store.client, receiver)
    waiting = [_line(entry, receiver, utc(due_ms)) for entry, due_ms in await outbox.pending(WAITING)]
    return waiting + [_line(entry, receiver) for entry in await outbox.ended()]


def _line(entry: OutboxEntry, receiver: str, due_at: str | None = None) -> ListedAlert:
    return ListedAlert(
        entry.id,
        entry.type,
        receiver,
        "pending" if due_at else "given_up" if entry.error else "sent",
        utc(entry.created_ms),
        str(msgspec.json.decode(entry.body, type=Event).data.get("message", "")),
        entry.attempts,
        entry.error,
        due_at,
        utc(entry.ended_ms) if entry.ended_ms else None,
    )
