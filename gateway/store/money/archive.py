"""The archive of ledgers: a folder with one file for each account, whose lines are those of its ledger from the first on.

1. **A file only grows.** It holds every line that the store says is archived. It may also hold lines that are still in the
   ledger: those of a run that was killed before it trimmed them.
2. **What the store says is archived is verified against the file** whenever it is read: the number of lines, their sums, the
   last id.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import msgspec

from gateway import durable
from gateway.amounts import amount as units
from gateway.errors import GatewayError
from gateway.request_id import arrival_ms
from gateway.store.money.scripts import SKEW_S

Entry = tuple[bytes, dict[bytes, bytes]]
"""A line of a ledger as the store returns it: its id and its fields."""

MOVES = frozenset((b"credit", b"adjust"))
"""The kinds of lines that do not belong to a request."""


class ArchiveError(GatewayError):
    """A file of the archive is not as expected; the message names it and says what to do."""


class Archived(msgspec.Struct, frozen=True):
    """The first lines of a ledger, which were moved out of it: their number, and their sums in micros."""

    lines: int = 0
    total: int = 0
    transactions: int = 0
    """How many of the lines are credits and adjustments."""
    credited: int = 0
    """The sum of these."""
    last: str = "0-0"
    """The id of the last line."""

    @classmethod
    def of(cls, field: bytes | None) -> Archived:
        """Decode the wallet's field `archived`."""
        if not field:
            return cls()
        _, lines, total, transactions, credited, last = field.decode().split()
        return cls(int(lines), int(total), int(transactions), int(credited), last)

    @property
    def field(self) -> str:
        """The wallet's field `archived`."""
        sums = (1, self.lines, self.total, self.transactions, self.credited, self.last)
        return " ".join(map(str, sums)) if self.lines else ""

    @property
    def last_ms(self) -> int:
        """The time of the last line; 0 where there is none."""
        return int(self.last.partition("-")[0])

    def may_have(self, request_id: str) -> bool:
        """Return whether a line of this request may be among them."""
        return self.lines > 0 and arrival_ms(request_id) <= self.last_ms + SKEW_S * 1000


def encode(line: bytes, fields: Mapping[bytes, bytes]) -> bytes:
    """Return a line of the file: always the same for the same line of the ledger."""
    values: dict[str, str | int] = {"line": line.decode()}
    values |= {name.decode(): value.decode(errors="backslashreplace") for name, value in fields.items()}
    values["amount"] = int(values["amount"])
    return msgspec.json.encode(values) + b"\n"


class Archive:
    """The archive in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def file(self, account: str) -> Path:
        """Return the path of an account's file."""
        return self.folder / f"{account}.jsonl"

    def entries(self, account: str, archived: Archived) -> Iterator[Entry]:
        """Yield the archived lines of an account. Raises `ArchiveError` where they are not as the store says. Blocks."""
        if archived.lines:
            path = self.file(account)
            try:
                with path.open("rb") as file:
                    yield from _verified(file, archived, path)
            except OSError as error:
                raise ArchiveError(f"cannot read {path}: {error.strerror}") from None

    @contextmanager
    def locked(self, account: str) -> Iterator[ArchiveFile]:
        """Open an account's file for one process at a time. Raises `ArchiveError` where another has it open. Blocks."""
        path = self.file(account)
        try:
            durable.make_folder(self.folder)
            with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                durable.flush_folder(self.folder)
                yield ArchiveFile(file, path)
        except BlockingIOError:
            raise ArchiveError(f"another archiver is at work on {path}: let it end") from None
        except OSError as error:
            raise ArchiveError(f"cannot write {path}: {error.strerror}") from None


class ArchiveFile:
    """An account's file, read from its start and then appended to. All of it blocks."""

    def __init__(self, file: IO[bytes], path: Path) -> None:
        self._file, self._path = file, path

    def verify(self, archived: Archived) -> None:
        """Read the archived lines. Raises `ArchiveError` where they are not as the store says."""
        for _ in _verified(self._file, archived, self._path):
            pass

    def append(self, page: Iterable[Entry]) -> None:
        """Write the ledger's next lines to the disk, except those that an earlier run wrote.

        Raises `ArchiveError` where the file has other lines there.
        """
        text = b"".join(encode(line, fields) for line, fields in page)
        start = self._file.tell()
        written = self._file.read(len(text))
        if not text.startswith(written):
            raise ArchiveError(
                f"{self._path}: what follows byte {start} is not in the ledger; the store may be an older one. "
                "Nothing was trimmed: compare them, and cut the file there if the ledger is right"
            )
        self._file.write(text[len(written) :])
        durable.flush(self._file)


def _verified(file: Iterable[bytes], archived: Archived, path: Path) -> Iterator[Entry]:
    count, total, transactions, credited, last = 0, 0, 0, 0, "0-0"
    lines = iter(file)
    while count < archived.lines and (text := next(lines, b"")):
        line, fields = _decode(text, path, count + 1)
        amount = int(fields[b"amount"])
        count, total, last = count + 1, total + amount, line.decode()
        if fields[b"kind"] in MOVES:
            transactions, credited = transactions + 1, credited + amount
        yield line, fields
    actual = Archived(count, total, transactions, credited, last)
    if actual != archived:
        raise ArchiveError(
            f"{path} has {actual.lines} archived lines up to {actual.last} that come to {units(actual.total)}; by the store "
            f"they are {archived.lines} up to {archived.last} and come to {units(archived.total)}: is it in another folder?"
        )


def _decode(text: bytes, path: Path, number: int) -> Entry:
    try:
        values = msgspec.json.decode(text, type=dict[str, str | int])
        fields = {name.encode(): str(value).encode() for name, value in values.items()}
        line, _ = fields.pop(b"line"), (fields[b"kind"], fields[b"id"], int(fields[b"amount"]))
    except (msgspec.DecodeError, KeyError, ValueError):
        raise ArchiveError(f"{path}: line {number} is not a line of a ledger") from None
    return line, fields
