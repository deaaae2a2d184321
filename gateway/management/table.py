"""The table of all operations."""

from __future__ import annotations

from typing import Any, Final

from gateway.management import accounts
from gateway.management.operation import Operation

OPERATIONS: Final[tuple[Operation[Any, Any], ...]] = (
    accounts.create,
    accounts.list_,
    accounts.read,
)
