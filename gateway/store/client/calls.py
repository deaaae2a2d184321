"""Callbacks for every call of the store in this process, for metrics. They do nothing until metrics set them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final


class Calls:
    """`answered(seconds, replies)` is called for replies that arrived together, `failed(error)` for each error or missing reply."""

    def __init__(self) -> None:
        self.answered: Callable[[float, int], None] = lambda seconds, answers: None
        self.failed: Callable[[Exception], None] = lambda error: None


CALLS: Final = Calls()
