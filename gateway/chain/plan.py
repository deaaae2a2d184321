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

from gateway.base.errors import GatewayError
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


Read = tuple[int, Entry, Callable[[Exchange, Any], Awaitable[bool | None] | None]]
"""What reads the reply of a step: the place of its plugin in the list, its entry, and the method of its part."""


class PlannedChain:
    """The parts of one plan."""

    def __init__(self, credential: str) -> None:
        self.credential = credential
        """What the caller sent, as `credential_of` gives it."""
        self.entries: list[Entry] = []
        self.parts = PlanParts()
        self.fills: list[Callable[[Exchange, Body], Values | Coroutine[Any, Any, Values]]] = []
        self.begins: list[Callable[[Exchange], None]] = []
        self.begun: list[Entry] = []
        """Those whose `begin` stands for their `on_request`, which then is not called."""
        self.reads: list[Read] = []
        self.request: Filled | None = None
        self.end: Filled | None = None
        self.end_fills: list[Callable[[Exchange], Values]] = []
        self.end_reads: list[tuple[Entry, Callable[[Exchange, Any], bool | None]]] = []

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

    async def find(self, exchange: Exchange) -> PlannedChain | None:
        """Return the plan of a request, whose body is then read; None where it has none."""
        found = self._by_credential.get(credential_of(exchange.request.headers))
        if found is None:
            return None
        exchange[Caller], plans = found  # whose share of the memory the body takes
        try:
            body = await exchange.body()
        except (GatewayError, ConnectionError):
            body = None  # the hooks find it, in their order
        del exchange[Caller]  # until the guard of the plan has said that it is still so
        return None if body is None else plans.get((exchange.request.operation, body.model))

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
    sent, keys = getall("Authorization", NONE), getall("x-api-key", NONE)
    if len(sent) + len(keys) != 1:
        return ""
    return str(sent[0]) if sent else f"\n{keys[0]}"  # a header has no line feed
