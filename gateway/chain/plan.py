"""Plans: what all requests of one caller for one model have in common, made once and kept from one request to the next.

A plan is made of an exchange that the hooks have admitted, from what the plugins at the top of the chain return of `prepare`, and
found by the credential that was sent, the operation and the model. A request of it runs none of their hooks: their parts fill the
holes of one script, and read its replies (`RequestHooks.run_plan`).

1. **A part does the ordinary case alone.** Where one declines, or the store's reply is not the ordinary one, the hooks run from
   there, which decide everything.
2. **A plan is dropped** where a part finds it stale, with its configuration, and as the oldest of too many.
3. **Only requests whose body has arrived with their head have one**: nothing waits before the script is sent.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Final

import msgspec
from multidict import istr

from gateway.chain.entry import Entry
from gateway.chain.plugin import Plan, PlanPart, PlanParts, Values, defines
from gateway.chat.request import Body
from gateway.domain.exchange import Exchange
from gateway.domain.facts import Caller
from gateway.operations.operation import Operation
from gateway.store.client.steps import Filled

MOST: Final = 4096
"""Plans that are kept, of all credentials. Each takes some 9 KiB."""
NONE: Final[tuple[str, ...]] = ()
AUTHORIZATION: Final = istr("Authorization")
API_KEY: Final = istr("x-api-key")
"""Names of headers in the type that is found fastest."""


Read = tuple[int, Entry, Callable[[Exchange, Any], Awaitable[bool | None] | None]]
"""What reads the reply of a step: the place of its plugin in the list, its entry, and the method of its part."""


class PlannedChain(msgspec.Struct, eq=False):
    """The parts of one plan."""

    credential: str
    """What the caller sent, as `credential_of` gives it."""
    entries: Sequence[Entry] = ()
    parts: PlanParts | None = None
    fills: list[Callable[[Exchange, Body], Values | Coroutine[Any, Any, Values]]] = []
    begins: list[Callable[[Exchange], None]] = []
    begun: tuple[Entry, ...] = ()
    """Those whose `begin` stands for their `on_request`, which then is not called."""
    reads: list[Read] = []
    request: Filled | None = None
    end: Filled | None = None
    end_fills: list[Callable[[Exchange], Values]] = []
    end_reads: list[tuple[Entry, Callable[[Exchange, Any], bool | None]]] = []

    def prepare(self, plan: Plan, entries: Sequence[Entry]) -> bool:
        """Ask the plugins for their parts. Return whether there are any to be used."""
        parts: list[tuple[Entry, PlanPart]] = []
        for entry in entries:
            part = entry.plugin.prepare(plan) if entry.on_error == "refuse" else None
            if part is None:
                if entry.plans_request:  # its step belongs into the same script
                    return False
                break
            parts.append((entry, part))
        if not any(Caller in entry.plugin.provides for entry, _ in parts):
            return False
        self.entries = [entry for entry, _ in parts]
        self.parts = PlanParts((entry.plugin, (part, None)) for entry, part in parts)
        for place, (entry, part) in enumerate(parts):
            if defines(part, PlanPart, "fill"):
                self.fills.append(part.fill)
            if defines(part, PlanPart, "begin"):
                self.begins.append(part.begin)
                self.begun += () if entry.plans_request else (entry,)
            if part.request is not None:
                self.reads.append((place, entry, part.read))
        for entry, part in reversed(parts):
            if defines(part, PlanPart, "fill_end"):
                self.end_fills.append(part.fill_end)
            if part.end is not None:
                self.end_reads.append((entry, part.read_end))
        asked = [part.request for _, part in parts if part.request is not None]
        ended = [part.end for _, part in reversed(parts) if part.end is not None]
        self.request, self.end = Filled(asked) if asked else None, Filled(ended) if ended else None
        return True


class Plans:
    """The plans of one chain."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._entries = entries
        self._by_credential: dict[str, tuple[Caller, dict[tuple[Operation, str], PlannedChain | None]]] = {}
        self._kept = 0

    def of_caller(self, exchange: Exchange) -> tuple[Caller, dict[tuple[Operation, str], PlannedChain | None]] | None:
        """Return the plans of the credential of a request, and whose they are; None where it has none."""
        return self._by_credential.get(credential_of(exchange.request.headers))

    def add(self, exchange: Exchange) -> None:
        """Make the plan of an exchange that the hooks have admitted, unless it has one."""
        credential, caller = credential_of(exchange.request.headers), exchange.get(Caller)
        if not credential or caller is None:
            return
        key = exchange.request.operation, exchange.model
        if (found := self._by_credential.get(credential)) is not None and key in found[1]:
            return
        planned = PlannedChain(credential)
        made = planned if planned.prepare(Plan(exchange, kept=True), self._entries) else None
        if self._kept >= MOST:
            self._drop(next(iter(self._by_credential)))
        self._by_credential.setdefault(credential, (caller, {}))[1][key] = made
        self._kept += 1

    def __len__(self) -> int:
        return self._kept

    def forget(self, plan: PlannedChain) -> None:
        """Forget all plans of a plan's credential: they rest on the same."""
        self._drop(plan.credential)

    def _drop(self, credential: str) -> None:
        if (found := self._by_credential.pop(credential, None)) is not None:
            self._kept -= len(found[1])


def credential_of(headers: Mapping[str, str]) -> str:
    """Return what finds a caller's plans: the one credential that was sent, empty where there is none or more than one."""
    getall = getattr(headers, "getall", None)
    if getall is None:
        return ""
    sent, keys = getall(AUTHORIZATION, NONE), getall(API_KEY, NONE)
    if len(sent) + len(keys) != 1:
        return ""
    return str(sent[0]) if sent else f"\n{keys[0]}"  # a header has no line feed
