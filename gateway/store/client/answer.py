"""What a server says of itself on its socket, asked without a client: whether it serves, and how far it has loaded."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import Final

import msgspec

TIMEOUT_S: Final = 0.5

_REPLIES: Final = re.compile(rb"(\+PONG|-LOADING|-MISCONF)[^\n]*\n\$(\d+)\r\n")


class Answer(msgspec.Struct, frozen=True):
    """The process id of a server, and a line that says how far it is while it is `loading`.

    `written`: the bytes of its append-only files as it counts them, -1 while it rewrites them.
    """

    pid: int
    loading: bool
    progress: str = ""
    written: int = -1


def ask(path: Path, timeout_s: float = TIMEOUT_S) -> Answer | None:
    """Return the answer of the server whose socket is at `path`; None where none comes within `timeout_s`. Blocks."""
    replies = b""
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(timeout_s)
            connection.connect(str(path))
            connection.sendall(b"PING\r\nINFO server persistence\r\n")
            while not (match := _REPLIES.match(replies)) or len(replies) < match.end() + int(match[2]):
                if not (data := connection.recv(65536)):
                    return None
                replies += data
    except OSError:
        return None
    info = dict(line.split(":", 1) for line in replies.decode(errors="replace").splitlines() if ":" in line)
    # The reply to PING is MISCONF while the disk is full; such a server serves what it has.
    if match[1] != b"-LOADING":
        rewrites = info["aof_rewrite_in_progress"] != "0" or info["aof_rewrite_scheduled"] != "0"
        return Answer(int(info["process_id"]), loading=False, written=-1 if rewrites else int(info["aof_current_size"]))
    done, left_s = info.get("loading_loaded_perc", "0"), info.get("loading_eta_seconds", "?")
    return Answer(
        int(info["process_id"]), loading=True, progress=f"the store is loading: {done} % done, about {left_s} s left"
    )


def rewrite(path: Path, timeout_s: float = TIMEOUT_S) -> None:
    """Let the server whose socket is at `path` rewrite its append-only files in the background. Raises `OSError`. Blocks."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(timeout_s)
        connection.connect(str(path))
        connection.sendall(b"BGREWRITEAOF\r\n")
        connection.recv(65536)
