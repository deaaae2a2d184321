"""Handover of a checked configuration file from the parent to its workers, in memory that they share.

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
from gateway.config.secrets import MAX_TOTAL

_ANSWER: Final = struct.Struct("<Q")
_HEAD: Final = struct.Struct("<Q32s")
"""The length of the offer and its digest: bytes that are read while the parent writes are not taken for an offer."""
MAX_REASON: Final = 2000
"""Characters of a reason."""
MAX_REFUSED: Final = _HEAD.size + 4 * MAX_REASON + 64
MAX_OFFER: Final = _HEAD.size + MAX_FILE_BYTES + 2 * MAX_TOTAL + 4096


class RefusedReload(msgspec.Struct, frozen=True):
    """Why the last change of the file was not taken up, and when, in seconds since 1970."""

    reason: str
    at: float


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
    """The shared memory: an offer, an answer of each worker, and the last refusal. Create it before the fork of the workers."""

    def __init__(self, workers: int) -> None:
        self._offer = mmap.mmap(-1, MAX_OFFER)
        self._refused = mmap.mmap(-1, MAX_REFUSED)
        self._answers = mmap.mmap(-1, _ANSWER.size * workers)
        self._workers = workers

    def write(self, offer: Offer) -> None:
        """Publish an offer, or its next phase. Only the parent writes."""
        _write(self._offer, msgspec.msgpack.encode(offer))

    def read(self) -> Offer | None:
        """Return the offer, or None before the first one and while it is written."""
        encoded = _read(self._offer)
        return msgspec.msgpack.decode(encoded, type=Offer) if encoded else None

    def refuse(self, refused: RefusedReload | None) -> None:
        """Publish why the last change of the file was not taken up; None once one was. Only the parent writes."""
        short = None
        if refused is not None:  # a name of a file may have bytes that are no text
            reason = refused.reason[:MAX_REASON].encode("utf-8", "replace").decode()
            short = RefusedReload(reason, refused.at)
        _write(self._refused, msgspec.msgpack.encode(short))

    def refused(self) -> RefusedReload | None:
        """Return why the last change of the file was not taken up, or None where the file is served as it is."""
        encoded = _read(self._refused)
        return msgspec.msgpack.decode(encoded, type=RefusedReload | None) if encoded else None

    def answers(self, number: int) -> list[bool | None]:
        """Return for each worker whether it could start the offer of this number; None where it has not answered."""
        words = [_ANSWER.unpack_from(self._answers, index * _ANSWER.size)[0] for index in range(self._workers)]
        return [bool(word % 2) if word // 2 == number else None for word in words]

    def answer(self, worker: int, number: int, started: bool) -> None:
        """Answer an offer, as the worker of this index. Number 0 is no offer: a new worker takes back what the one before said."""
        _ANSWER.pack_into(self._answers, worker * _ANSWER.size, 2 * number + started)


def _write(memory: mmap.mmap, encoded: bytes) -> None:
    memory[_HEAD.size : _HEAD.size + len(encoded)] = encoded
    _HEAD.pack_into(memory, 0, len(encoded), sha256(encoded).digest())


def _read(memory: mmap.mmap) -> bytes:
    """Return the bytes that were written; none before the first write, and during one."""
    length, digest = _HEAD.unpack_from(memory)
    encoded = memory[_HEAD.size : _HEAD.size + length]
    return encoded if sha256(encoded).digest() == digest else b""
