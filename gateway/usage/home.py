"""The home of the usage log: the SQLite files of this gateway's folder, or a PostgreSQL database that several gateways share.

Both have the same methods, and a part for each month: a file, or tables. A query is the same text for both, with `?` for values and
with the names of the tables that the part has: `part.requests`, `part.days`, `part.ends`. All of it blocks.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from gateway.base.errors import Misconfigured
from gateway.usage.database import File, UsageFiles

if TYPE_CHECKING:
    from gateway.config.schema import Config
    from gateway.usage.postgres import Postgres, Tables

    Home: TypeAlias = UsageFiles | Postgres
    Part: TypeAlias = File | Tables
else:
    Home = Part = object

DATABASES: Final[dict[tuple[str, Path], Postgres]] = {}
"""The databases of this process, whose connections all share."""


def home_of(config: Config) -> Home:
    """Return the home that the configuration names; nothing is opened. Raises `Misconfigured`."""
    folder = config.data_path / "usage"
    return postgres(config.usage.database, folder) if config.usage.database else UsageFiles(folder)


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
