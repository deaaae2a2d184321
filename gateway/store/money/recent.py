"""The settlements that the store has acknowledged recently, to repeat them to a store that may have lost them."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from gateway.store.client.replay_buffer import ReplayBuffer
from gateway.store.money.results import Settlement

_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(tuple[str, str, int, Literal["settle", "release"], str]).decode


class RecentSettlements:
    """Settlements of about the last minute."""

    def __init__(self) -> None:
        self._lines = ReplayBuffer()

    def add(self, settlement: Settlement) -> None:
        """Add a settlement that the store has acknowledged."""
        account, request_id = settlement.account, settlement.request_id
        self._lines.add(_encode((account, request_id, settlement.cost, settlement.kind, settlement.marks)))

    def latest(self) -> list[Settlement]:
        """Return the last settlement of each request."""
        settlements = (Settlement(*_decode(line)) for line in self._lines)
        return list({settlement.request_id: settlement for settlement in settlements}.values())
