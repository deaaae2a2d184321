"""A queue that takes from each address in turn: one address with much work does not delay the others."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Generic, TypeVar

Item = TypeVar("Item")


class FairQueue(Generic[Item]):
    """Items of several addresses: those of one address in order, the addresses in turn."""

    __slots__ = ("_of_address",)

    def __init__(self) -> None:
        self._of_address: OrderedDict[str, deque[Item]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._of_address)

    def put(self, address: str, item: Item) -> None:
        """Add an item behind the others of its address."""
        self._of_address.setdefault(address, deque()).append(item)

    def take(self) -> Item:
        """Remove and return the first item of the address whose turn it is."""
        address, items = self._of_address.popitem(last=False)
        item = items.popleft()
        if items:
            self._of_address[address] = items
        return item
