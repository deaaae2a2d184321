"""The archive of ledgers: a folder with one file for each account, whose lines are those of its ledger from the first on.

1. **A file only grows.** It holds every line that the store says is archived, and maybe some more, which the ledger still
   has: of a run that was killed before it trimmed them.
2. **What the store says is archived is proved from the file** whenever it is read: so many lines, their sums, the last id.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import msgspec

from gateway.errors import GatewayError
from gateway.request_id import arrival_ms
from gateway.store.money.scripts import SKEW_S

Entry = tuple[bytes, dict[bytes, bytes]]
"""A line of a ledger as the store tells it: its id and its fields."""

MOVES = frozenset((b"credit", b"adjust"))
"""The kinds of lines that are no request's."""


class ArchiveError(GatewayError):
    """A file of the archive is not what it must be; the message names it and says what to do."""


class Archived(msgspec.Struct, frozen=True):
    """The first lines of a ledger, which are no longer in it: how many, and what they come to in micros."""

    lines: int = 0
    total: int = 0
    transactions: int = 0
    """How many of the lines are credits and adjustments."""
    credited: int = 0
    """What these come to."""
    last: str = "0-0"
    """The id of the last line."""

    @classmethod
    def of(cls, field: bytes | None) -> Archived:
        """From the account's field `archived`."""
        if not field:
            return cls()
        _, lines, total, transactions, credited, last = field.decode().split()
        return cls(int(lines), int(total), int(transactions), int(credited), last)

    @property
    def field(self) -> str:
        """The account's field `archived`."""
        sums = (1, self.lines, self.total, self.transactions, self.credited, self.last)
        return " ".join(map(str, sums)) if self.lines else ""

    def may_have(self, request_id: str) -> bool:
        """Whether a line of this request may be among them."""
        return self.lines > 0 and arrival_ms(request_id) <= int(self.last.partition("-")[0]) + SKEW_S * 1000


def encode(line: bytes, fields: Mapping[bytes, bytes]) -> bytes:
    """A line of the file, always the same for the same line of the ledger."""
    told: dict[str, str | int] = {"line": line.decode()}
    told |= {name.decode(): value.decode(errors="backslashreplace") for name, value in fields.items()}
    told["amount"] = int(told["amount"])
    return msgspec.json.encode(told) + b"\n"


class Archive:
    """The archive in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def file(self, account: str) -> Path:
        """Where an account's lines are."""
        return self.folder / f"{account}.jsonl"

    def entries(self, account: str, archived: Archived) -> Iterator[Entry]:
        """The lines of an account that are archived. Raises `ArchiveError` where they are not as the store says. Blocks."""
        if archived.lines:
            try:
                with self.file(account).open("rb") as file:
                    yield from _proved(file, archived, self.file(account))
            except OSError as error:
                raise ArchiveError(f"cannot read {self.file(account)}: {error.strerror}") from None

    @contextmanager
    def growing(self, account: str) -> Iterator[Growing]:
        """An account's file, for one process at a time. Raises `ArchiveError` where another has it. Blocks."""
        path = self.file(account)
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _sync(self.folder)
                yield Growing(file, path)
        except BlockingIOError:
            raise ArchiveError(f"another archiver is at work on {path}: let it end") from None
        except OSError as error:
            raise ArchiveError(f"cannot write {path}: {error.strerror}") from None


class Growing:
    """An account's file, read from its start and then appended to. All of it blocks."""

    def __init__(self, file: IO[bytes], path: Path) -> None:
        self._file, self._path = file, path

    def prove(self, archived: Archived) -> None:
        """Read what is archived. Raises `ArchiveError` where it is not as the store says."""
        for _ in _proved(self._file, archived, self._path):
            pass

    def hold(self, page: Iterable[Entry]) -> None:
        """Have the ledger's next lines on the disk. What an earlier run wrote of them is not written again.

        Raises `ArchiveError` where other lines are there already.
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
        self._file.flush()
        os.fsync(self._file.fileno())


def _proved(file: Iterable[bytes], archived: Archived, path: Path) -> Iterator[Entry]:
    count, total, transactions, credited, last = 0, 0, 0, 0, "0-0"
    lines = iter(file)
    while count < archived.lines and (text := next(lines, b"")):
        line, fields = _entry(text, path, count + 1)
        count, total, last = count + 1, total + int(fields[b"amount"]), line.decode()
        if fields[b"kind"] in MOVES:
            transactions, credited = transactions + 1, credited + int(fields[b"amount"])
        yield line, fields
    found = Archived(count, total, transactions, credited, last)
    if found != archived:
        raise ArchiveError(
            f"{path} has {found.lines} archived lines up to {found.last} that come to {found.total} micros; by the store "
            f"they are {archived.lines} up to {archived.last} and come to {archived.total}: is it in another folder?"
        )


def _entry(text: bytes, path: Path, number: int) -> Entry:
    try:
        told = msgspec.json.decode(text, type=dict[str, str | int])
        fields = {name.encode(): str(value).encode() for name, value in told.items()}
        line, _ = fields.pop(b"line"), (fields[b"kind"], fields[b"id"], int(fields[b"amount"]))
    except (msgspec.DecodeError, KeyError, ValueError):
        raise ArchiveError(f"{path}: line {number} is not a line of a ledger") from None
    return line, fields


def _sync(folder: Path) -> None:
    directory = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
