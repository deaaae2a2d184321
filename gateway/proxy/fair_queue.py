"""A queue that takes from each of several keys in turn: one address or account with much work does not delay the others."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Generic, TypeVar

Item = TypeVar("Item")


class FairQueue(Generic[Item]):
    """Items of several keys: those of one key in order, the keys in turn."""

    __slots__ = ("_of_key",)

    def __init__(self) -> None:
        self._of_key: OrderedDict[str, deque[Item]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._of_key)

    def __contains__(self, key: str) -> bool:
        return key in self._of_key

    def put(self, key: str, item: Item) -> None:
        """Add an item behind the others of its key."""
        self._of_key.setdefault(key, deque()).append(item)

    def take(self) -> Item:
        """Remove and return the first item of the key whose turn it is."""
        key, items = self._of_key.popitem(last=False)
        item = items.popleft()
        if items:
            self._of_key[key] = items
        return item
