"""The home of the usage log: the SQLite files of this gateway's folder, or a PostgreSQL database that several gateways share.

Both have a part for each month: a file, or tables. A query is the same text for both, with `?` for values and with the names of
the tables that the part has: `part.requests`, `part.days`, `part.ends`. All of it blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from gateway.base.errors import Misconfigured
from gateway.usage import database
from gateway.usage.database import File, UnusableFile, UsageDatabase

if TYPE_CHECKING:
    from gateway.config.schema import Config
    from gateway.usage.postgres import Postgres, Tables

    Home: TypeAlias = Path | Postgres
    Part: TypeAlias = File | Tables
    Writer: TypeAlias = UsageDatabase | Postgres
else:
    Home = Part = Writer = object

DATABASES: Final[dict[tuple[str, Path], Postgres]] = {}
"""The databases of this process, whose connections all share."""


def home_of(config: Config) -> Home:
    """Return the home that the configuration names; nothing is opened. Raises `Misconfigured`."""
    folder = config.data_path / "usage"
    return postgres(config.usage.database, folder) if config.usage.database else folder


def postgres(url: str, folder: Path) -> Postgres:
    """Return the database at a URL, one object in a process. `folder` is what this gateway keeps itself. Raises `Misconfigured`."""
    try:
        from gateway.usage.postgres import Postgres  # with the driver, which takes a tenth of a second
    except ImportError as error:
        raise Misconfigured(
            f"usage.database: the driver cannot be loaded ({error}); install it: pip install 'sluicegate[postgres]'"
        ) from None
    if (url, folder) not in DATABASES:
        DATABASES[url, folder] = Postgres(url, folder)
    return DATABASES[url, folder]


def writer_of(home: Home) -> Writer:
    """Return the writer of a home."""
    return UsageDatabase(home) if isinstance(home, Path) else home


def folder_of(home: Home) -> Path:
    """Return the folder of this gateway: of the spool, and of the notes about completeness."""
    return home if isinstance(home, Path) else home.folder


def months(home: Home) -> list[str]:
    """Return the months that have a part, the oldest first. Raises `UnusableFile`."""
    return database.months(home) if isinstance(home, Path) else home.months()


@contextmanager
def opened(home: Home, month: str) -> Iterator[Part | None]:
    """Open the part of a month for reading, as it is now; None where there is none. Raises `UnusableFile`."""
    with database.opened(home, month) if isinstance(home, Path) else home.opened(month) as part:
        yield part


def missing(home: Home, first: str, last: str) -> list[UnusableFile]:
    """Return an error for each file of these months that was damaged or lost."""
    if not isinstance(home, Path):
        return []
    found = [path for path in database.files_aside(home) if first <= path.name[len("usage-") :][:7] <= last]
    return list(map(database.lack, found))
