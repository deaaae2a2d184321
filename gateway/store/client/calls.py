"""Told of every call of the store that this process makes, for whoever counts them; nobody does at first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final


class Calls:
    """What is done with the seconds that answers took, which came together, and with an error that was one or stands for none."""

    def __init__(self) -> None:
        self.answered: Callable[[float, int], None] = lambda seconds, answers: None
        self.failed: Callable[[Exception], None] = lambda error: None


CALLS: Final = Calls()
