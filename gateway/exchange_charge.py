"""What an exchange used, what it costs, and what it is charged."""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from typing import Any, Final

import msgspec

from gateway.attempt import Attempt
from gateway.chat.usage import Usage

LARGEST: Final = (1 << 63) - 1
"""What a record can have."""


def read_only(name: str) -> Any:
    """Return a property with the value of the attribute `name`, which costs no call of Python code."""
    return property(attrgetter(name))


class Charge(msgspec.Struct, frozen=True):
    """What one plugin has charged: `micros`, what it was computed from, and the usage, if that is final."""

    by: object
    micros: int
    price: Mapping[str, object]
    usage: Usage | None


class ChargedExchange:
    """The part of an `Exchange` that is about money.

    The record, the metrics and the ledger agree, since what was charged is said once, by the plugin that has settled it.
    """

    __slots__ = ("_attempts", "_charge", "answer_usage")
    attempts: list[Attempt] = read_only("_attempts")
    """The calls of upstreams, in their order. The gateway adds to them."""

    def __init__(self) -> None:
        self._attempts: list[Attempt] = []
        self.answer_usage: Usage | None = None
        """What the answer of a plugin is charged as."""
        self._charge: Charge | None = None

    def charge(
        self, by: object, micros: int, price: Mapping[str, object] | None = None, usage: Usage | None = None
    ) -> None:
        """Set what is charged, in micros, what it was computed from, and the usage. Only for the plugin that charges, `by`.

        It settles the same with the store. Called again by this plugin, what is left out stays as it was. Raises `RuntimeError`
        where another plugin charges, and `TypeError` or `ValueError` for values that no record can have.
        """
        if type(micros) is not int:
            raise TypeError(f"a charge is a whole number of micros, not {micros!r}")
        if not 0 <= micros <= LARGEST:
            raise ValueError(f"a charge is from 0 to {LARGEST} micros, not {micros}")
        if price is not None:
            price = dict(price)
        before = self._charge
        if before is None:
            self._charge = Charge(by, micros, price or {}, usage)
        elif before.by is by:
            self._charge = Charge(by, micros, before.price if price is None else price, usage or before.usage)
        else:
            raise RuntimeError(f"{type(by).__name__} charges a request that {type(before.by).__name__} charges")

    @property
    def charge_micros(self) -> int:
        """What was charged, in micros. See `charge`."""
        return 0 if self._charge is None else self._charge.micros

    @property
    def price(self) -> dict[str, object]:
        """What the charge was computed from, as it is stored in the record."""
        return {} if self._charge is None else dict(self._charge.price)

    @property
    def usage(self) -> Usage:
        """The usage of all attempts together, or of the answer that a plugin gave. Once it is charged, what was charged."""
        if self._charge is not None and self._charge.usage is not None:
            return self._charge.usage
        if len(self._attempts) == 1:
            return self._attempts[0].usage
        total = self.answer_usage or Usage()
        for attempt in self._attempts:
            total += attempt.usage
        return total

    @property
    def cost_micros(self) -> int | None:
        """What the exchange costs the operator, in micros; None where one of its attempts has a cost that is not known."""
        total = 0
        for attempt in self._attempts:
            cost = attempt.cost_micros
            if cost is None:
                return None
            total += cost
        return total
