"""The archive of ledgers: a folder with one file for each account, with the lines of its ledger from the first on.

1. **A file only grows.** It holds every line that the store says is archived. It may also hold lines that are still in the
   ledger: those of a run that was killed before it trimmed them.
2. **What the store says is archived is verified against the file** whenever it is read: the number of lines, their sums, the
   last id.

`Archiver` moves old lines into it: first written to the disk, then trimmed, a page at a time.

3. **At every moment the balance equals the archived sum plus the sum of the ledger**: one script trims exactly the lines
   that were written, and adds them to what the account says is archived.
4. **A run may be killed at any point, and two may run at once.** What was written and not trimmed is found again by the next
   run; the script trims nothing where more is archived than this run knows of.
5. **No line moves while a late settlement may still refer to its request**; the script enforces that, by the store's clock.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

import msgspec

from gateway.base import crash_points, durable
from gateway.base.amounts import amount as units
from gateway.base.errors import GatewayError, StoreAway
from gateway.base.ids import arrival_ms
from gateway.store.client.client import Client
from gateway.store.money.scripts import KEEP_S, SKEW_S, keys_of, script

Entry = tuple[bytes, dict[bytes, bytes]]
"""A line of a ledger as the store returns it: its id and its fields."""

MOVES = frozenset((b"credit", b"adjust"))
"""The kinds of lines that do not belong to a request."""

PAGE: Final = 1000
YOUNGEST_S: Final = KEEP_S + 2 * SKEW_S
"""The minimum age of a line that may move."""


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
        """Decode the wallet's field `archived`. Raises `ArchiveError`."""
        if not field:
            return cls()
        try:
            _, lines, total, transactions, credited, last = field.decode().split()
            return cls(int(lines), int(total), int(transactions), int(credited), last)
        except ValueError:
            raise ArchiveError(
                f"the wallet's field `archived` is not as it was written ({field!r}): restore the store"
            ) from None

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


class Archiver:
    """Moves lines from a store into an archive; `keep_s` and `skew_s` are as for the wallet."""

    def __init__(self, client: Client, archive: Archive, *, keep_s: float = KEEP_S, skew_s: float = SKEW_S) -> None:
        self._client = client
        self.archive = archive
        self._window = (int(keep_s * 1000), int(skew_s * 1000))
        self.script = script("archive")

    async def move(self, account: str, before_ms: int) -> int:
        """Move an account's lines from before `before_ms` of the store's clock; return how many.

        `before_ms` is `YOUNGEST_S` ago or more. Raises `ArchiveError` where the archive is not as the store says,
        `StoreAway`, and `StoreError` where a line is too young. After any of these, another run continues from there.
        """
        if not await self._lines(account, "-", before_ms):
            return 0
        moved = 0
        with self.archive.locked(account) as file:
            archived = await self._archived(account)
            await asyncio.to_thread(file.verify, archived)
            while page := await self._lines(account, f"({archived.last}", before_ms):
                if await self._archived(account) != archived:  # what another has trimmed is missing before this page
                    raise _elsewhere(account)
                await asyncio.to_thread(file.append, page)
                crash_points.point("archive.written")
                last, _ = page[-1]
                archived = await self.trim(account, archived, len(page), last)
                moved += len(page)
        return moved

    async def trim(self, account: str, archived: Archived, count: int, last: bytes) -> Archived:
        """Trim the first `count` lines, up to `last`, which are in the file; return the archived part after that.

        Raises as `move` does, and `ArchiveError` where more is archived than `archived` says.
        """
        arguments = (account, archived.field, count, last, *self._window)
        replied_account, result, field = await self._client.run(self.script, keys_of(account), arguments)
        if replied_account != account.encode():
            raise StoreAway("the store's reply belongs to another call")
        if result != b"OK":
            raise _elsewhere(account)
        return Archived.of(field)

    async def _archived(self, account: str) -> Archived:
        return Archived.of(await self._client.call("HGET", keys_of(account).wallet, "archived"))

    async def _lines(self, account: str, first: str, before_ms: int) -> list[Entry]:
        ledger, last_ms = keys_of(account).ledger, max(before_ms, 1) - 1
        lines: list[Entry] = await self._client.call("XRANGE", ledger, first, last_ms, "COUNT", PAGE)
        return lines


def _elsewhere(account: str) -> ArchiveError:
    return ArchiveError(f"the ledger of `{account}` is archived elsewhere at the same time; this run moved no more")
