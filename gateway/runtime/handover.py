"""How the parent hands a checked configuration file to its workers, in memory that it shares with them.

1. The parent offers the bytes of a file. Every worker starts a chain from them beside its running one, and answers.
2. If every worker could start it, the offer is adopted, and the workers exchange their chains. Otherwise it is withdrawn, and
   all keep the one before.

So all processes take the same bytes and secrets, or none of them. A worker that starts meanwhile begins with the adopted file and
reads the offer then.
"""

from __future__ import annotations

import mmap
import struct
from hashlib import sha256
from typing import Final, Literal

import msgspec

from gateway.config.document import MAX_FILE_BYTES
from gateway.config.secret_files import MAX_TOTAL

_ANSWER: Final = struct.Struct("<Q")
_HEAD: Final = struct.Struct("<Q32s")
"""The length of the offer and its digest: what is read while the parent writes is not taken for an offer."""
MAX_OFFER: Final = _HEAD.size + MAX_FILE_BYTES + 2 * MAX_TOTAL + 4096


class Offer(msgspec.Struct, frozen=True):
    """The bytes of a file on their way to the workers, and the secrets of the files that it names.

    `number` counts the offers, `generation` those that are adopted.
    """

    number: int
    generation: int
    phase: Literal["offered", "adopted", "withdrawn"]
    raw: bytes
    secrets: dict[str, str] = {}


class Handover:
    """The shared memory: an offer, and an answer of each worker. Create it before the fork of the workers."""

    def __init__(self, workers: int) -> None:
        self._offer = mmap.mmap(-1, MAX_OFFER)
        self._answers = mmap.mmap(-1, _ANSWER.size * workers)
        self._workers = workers

    def write(self, offer: Offer) -> None:
        """Publish an offer, or its next phase. Only the parent writes."""
        encoded = msgspec.msgpack.encode(offer)
        self._offer[_HEAD.size : _HEAD.size + len(encoded)] = encoded
        _HEAD.pack_into(self._offer, 0, len(encoded), sha256(encoded).digest())

    def read(self) -> Offer | None:
        """Return the offer, or None before the first one and while it is written."""
        length, digest = _HEAD.unpack_from(self._offer)
        encoded = self._offer[_HEAD.size : _HEAD.size + length]
        if not length or sha256(encoded).digest() != digest:
            return None
        return msgspec.msgpack.decode(encoded, type=Offer)

    def answers(self, number: int) -> list[bool | None]:
        """Return for each worker whether it could start the offer of this number; None where it has not answered."""
        words = [_ANSWER.unpack_from(self._answers, index * _ANSWER.size)[0] for index in range(self._workers)]
        return [bool(word % 2) if word // 2 == number else None for word in words]

    def answer(self, worker: int, number: int, started: bool) -> None:
        """Answer an offer, as the worker of this index."""
        _ANSWER.pack_into(self._answers, worker * _ANSWER.size, 2 * number + started)


class WorkerEnd(msgspec.Struct, frozen=True):
    """One worker's end of a handover."""

    handover: Handover
    worker: int

    def begin(self) -> None:
        """Take back the answer of the worker that this one succeeds."""
        self.handover.answer(self.worker, 0, False)

    def read(self) -> Offer | None:
        """Return the offer, or None."""
        return self.handover.read()

    def answer(self, offer: Offer, *, started: bool) -> None:
        """Tell the parent whether this worker could start a chain from the offer."""
        self.handover.answer(self.worker, offer.number, started)
