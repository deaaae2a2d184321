"""The folder of the configuration's `data:` setting: made by `gateway serve` and `gateway init`, and by nothing else.

What stops a start or a command is said in a sentence before anything is opened: a file in the way, another owner, a disk that
is read-only or full, a folder that is not there.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pwd
from pathlib import Path
from typing import Final

from gateway.base import durable
from gateway.base.errors import GatewayError, Misconfigured, cannot_use
from gateway.config.schema import Config
from gateway.usage.home import Home, home_of

FILES: Final = ("store.lock", "appendonlydir", "pepper", "usage", "usage/spool", "journal", "gateway.lock")
"""Files and folders that a gateway and its commands open, where they exist."""
SERVER_FILES: Final = ("store.lock", "appendonlydir")
"""Files and folders that an embedded store has as soon as it has been started."""


class NoStore(GatewayError):
    """There is no store where the configuration says, and the command makes none."""


def data_folder(config: Config) -> Path:
    """Return the folder that `data:` names; create it, for its owner alone, where it is missing. Raises `GatewayError`."""
    return make_data_folder(config.data_path)


def make_data_folder(folder: Path) -> Path:
    """Create a data folder where it is missing, and check that it can be used. Raises `GatewayError`."""
    check_place(folder)
    try:
        durable.make_folder(folder)
    except OSError as error:
        raise _unusable(folder, error) from None
    check_access(folder)
    disk = os.statvfs(folder)
    if not disk.f_bavail or (disk.f_files and not disk.f_favail):
        raise GatewayError(f"data: the disk of {folder} is full: make room on it")
    return folder


def existing_folder(config: Config) -> Path:
    """Return the folder that `data:` names. Raises `NoStore` where it has no store, and `GatewayError` where it cannot be used."""
    folder = config.data_path
    check_place(folder)
    if not has_store(config):
        raise NoStore(f"no store at {folder}: start the gateway there, or pass --config")
    return folder


def usage_home(config: Config) -> Home:
    """Return the home of the usage log, whose files may have been copied without a store. Raises `NoStore`."""
    home = home_of(config)
    if not home.shared and not home.folder.exists():
        existing_folder(config)
    return home


def has_store(config: Config) -> bool:
    """Return whether the folder `data:` has the files of an embedded store. For a store elsewhere, the folder need only exist."""
    folder = config.data_path
    if config.redis == "embedded":
        return any((folder / name).exists() for name in SERVER_FILES)
    return folder.is_dir()


def check_access(folder: Path) -> None:
    """Raise `Misconfigured` where this user cannot use the folder or what is in it.

    Also where it is root and the store is of another user, who could not use the files that root makes.
    """
    for path in (folder, *(folder / name for name in FILES)):
        if path.exists() and not _may_use(path):
            raise _refused(folder, path)
    lock = folder / "store.lock"
    if os.geteuid() == 0 and lock.exists() and (owner := lock.stat().st_uid) != 0:
        raise Misconfigured(
            f"data: the store in {folder} belongs to {_name(owner)}, who could not use what root makes there: run this as that "
            f"user (`sudo -u {_name(owner)} ...`), or make root its owner: chown -R root {folder}"
        )


def remove_leftovers(folder: Path) -> None:
    """Remove the temporary files that killed processes left in the data folder, and in the folders in it."""
    for place in (folder, folder / "journal", folder / "usage", folder / "usage" / "spool"):
        with contextlib.suppress(OSError):  # what is wrong with a folder is reported where it is used
            durable.remove_leftovers(place)


def check_place(folder: Path) -> None:
    """Raise `Misconfigured` where the folder is a file, or this user may not see it."""
    for path in (*reversed(folder.parents), folder):
        try:
            mode_is_folder = path.is_dir()
            there = path.exists()
        except PermissionError:
            raise _refused(folder, path.parent) from None
        if there and not mode_is_folder:
            raise Misconfigured(f"data: {path} is a file, not a folder: move it away, or change `data:`")
        if not there:
            return
    if not _may(folder, os.X_OK):
        raise _refused(folder, folder)


def _may_use(path: Path) -> bool:
    return _may(path, os.R_OK | os.W_OK | (os.X_OK if path.is_dir() else 0))


def _may(path: Path, mode: int) -> bool:
    return os.access(path, mode, effective_ids=os.access in os.supports_effective_ids)


def _refused(folder: Path, path: Path) -> Misconfigured:
    if os.statvfs(path).f_flag & os.ST_RDONLY:
        return Misconfigured(f"data: {path} is on a read-only disk: mount it for writing, or change `data:`")
    owner, me = _name(path.stat().st_uid), _name(os.geteuid())
    if path in folder.parents:
        return Misconfigured(
            f"data: {me} may not look into {path}, which belongs to {owner}: run this as {owner}, or change `data:`"
        )
    if owner == me:
        return Misconfigured(f"data: {path} may not be read and written by its owner: chmod -R u+rwX {folder}")
    return Misconfigured(
        f"data: {path} belongs to {owner}, and this runs as {me}: run it as {owner} (`sudo -u {owner} ...`), or give the folder "
        f"to {me}: chown -R {me} {folder}"
    )


def _unusable(folder: Path, error: OSError) -> GatewayError:
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        parent = next(path for path in folder.parents if path.exists())
        if error.errno == errno.EROFS:
            return Misconfigured(f"data: {parent} is on a read-only disk: mount it for writing, or change `data:`")
        me, owner = _name(os.geteuid()), _name(parent.stat().st_uid)
        return Misconfigured(
            f"data: {me} may not make {folder}: {parent} belongs to {owner}. Make the folder as root and give it to {me} (chown), "
            "or change `data:`"
        )
    return cannot_use(f"data: cannot make {folder}", error, cure="change `data:`")


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"
