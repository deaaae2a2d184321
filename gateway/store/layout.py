"""The layout of the store's data: its number, which each version checks before it reads or writes anything else."""

from __future__ import annotations

from typing import Final

LAYOUT: Final = 2
KEY: Final = "gw:layout"
UNREADABLE: Final = f"this account is in layout {LAYOUT} of the data, which needs a later version of the gateway"
"""The field `balance` of every account. A version that knows only the layout before, which had the balance there, ends with an
error that contains this text."""
