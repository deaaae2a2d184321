"""Errors of the store that a retry will not mend, as errors of the file."""

from __future__ import annotations

from gateway.config.document import Document
from gateway.errors import StoreAway

NO_DATABASE = "DB index is out of range"


def refuse_database(document: Document, error: StoreAway) -> None:
    """Raise `Misconfigured` where the store has no database of the number in `redis:`."""
    if NO_DATABASE in str(error):
        text = (
            "the store has no database of this number; use a smaller one, or raise `databases` in the store's settings"
        )
        raise document.wrong(("redis",), text) from None
