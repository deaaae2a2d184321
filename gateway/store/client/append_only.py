"""The embedded server's append-only files: what is checked before a start, and why a start failed.

The server itself begins with an empty store, or with a part of the data, where its manifest or its base file is missing or
cut. These are found here, before it starts.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

from gateway.errors import GatewayError, Misconfigured

FOLDER: Final = "appendonlydir"
MANIFEST: Final = "appendonly.aof.manifest"

MAX_REASON: Final = 300
_LINE: Final = re.compile(r"file (\S+) seq \d+ type ([bih])(?: .*)?")
_IRRELEVANT: Final = ("WARNING", "!!!", "Redis is now ready", "Signal handler")
_PASSING: Final = re.compile(
    r"No space left|Cannot allocate memory|Out Of Memory|Too many open files|quota exceeded", re.I
)
_DAMAGE: Final = re.compile(r"append.only|AOF|RDB|Short read", re.I)


def check(data: Path, *, expected: bool) -> None:
    """Check the files of the server in `data`; `expected` says whether it has ever started there.

    Raises `Misconfigured` where the server would lose data by starting, and `OSError` where the files cannot be read.
    """
    folder = data / FOLDER
    if not folder.exists():
        if expected:
            raise Misconfigured(
                f"redis: {folder} is missing, which has all balances: restore it from a backup; to begin with an empty "
                f"store, delete {data / 'store.lock'}"
            )
        return
    manifest = folder / MANIFEST
    if not manifest.exists():
        if any(path.suffix in (".aof", ".rdb") for path in folder.iterdir()):
            raise _damaged(folder, f"{MANIFEST} is missing")
        return
    text = manifest.read_text(errors="replace")
    lines = [_LINE.fullmatch(line) for line in text.splitlines()]
    files = {match[2]: match[1] for match in lines if match}
    if not text.endswith("\n") or None in lines or "i" not in files:
        raise _damaged(folder, f"{MANIFEST} is not whole")
    if "b" in files and (folder / files["b"]).exists() and not (folder / files["b"]).stat().st_size:
        raise _damaged(folder, f"{files['b']} is empty")


def zero_bytes(data: Path, written: Callable[[], int]) -> int:
    """Return how many bytes the files have that the server, which says what it has `written`, does not count.

    `written` returns -1 where that is not known. Raises `OSError`.
    """
    folder = data / FOLDER
    manifest = (folder / MANIFEST).read_text()
    size = sum((folder / line.split()[1]).stat().st_size for line in manifest.splitlines() if " type h" not in line)
    counted = written()
    known = counted >= 0 and (folder / MANIFEST).read_text() == manifest
    return max(0, size - counted) if known else 0


def failure(data: Path, code: int, log: str) -> GatewayError:
    """Return the error for a server that ended while it started, with its exit code and what it wrote to its log.

    It is `Misconfigured` where only a person can repair the files, so that a service manager does not try again.
    """
    reason = reason_in(log)
    if code < 0 or _PASSING.search(log):
        cause = f"signal {-code}" if code < 0 else reason or f"exit code {code}"
        return GatewayError(f"redis: the embedded server ended while it started: {cause}; see {data / 'store.log'}")
    if _DAMAGE.search(reason):
        return _damaged(data / FOLDER, reason)
    return Misconfigured(
        f"redis: the embedded server did not start: {reason or f'exit code {code}'}; see {data / 'store.log'}"
    )


def reason_in(log: str) -> str:
    """Return the last two warnings in a log of the server, on one line."""
    texts = [line.partition(" # ")[2].strip() for line in log.splitlines() if " # " in line]
    relevant = [text for text in texts if text and not text.startswith(_IRRELEVANT)]
    joined = "; ".join(text.partition(": make a backup")[0] for text in relevant[-2:])
    return "".join(letter if letter.isprintable() else "?" for letter in joined)[:MAX_REASON]


def _damaged(folder: Path, reason: str) -> Misconfigured:
    return Misconfigured(
        f"redis: the embedded server cannot load {folder}: {reason}. Restore the folder from a backup; or copy it, then drop "
        f"what follows the damage with `valkey-check-aof --fix {folder / MANIFEST}`"
    )
