"""Processes of `python -m` that are forked from one that has imported the gateway: a tenth of the cost of a start from nothing.

`FORKED` takes the place of `sys.executable` in a command `(FORKED, "-m", MODULE, ...)` of `subprocess` or `asyncio`. The process
is a child of the test's process, with its own arguments, environment, folder and descriptors, and runs the module from its
first line. Only what it imports is there already, with what it works out once of settings and commands, and at its end that is
not freed. A command that asks for more, such as another environment of Python, is started from nothing, as are all where the
system is not Linux. Tests of the start itself use `sys.executable`.
"""

from __future__ import annotations

import atexit
import ctypes
import inspect
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

MAX_MESSAGE: Final = 128 * 1024
PR_SET_CHILD_SUBREAPER: Final = 36
READ_AT_START: Final = ("PYTHON", "LD_", "LC_", "LANG", "MALLOC_", "GATEWAY_PURE", "TZ")
"""Prefixes of the variables that a process reads before its module runs, or when it imports the gateway."""
FORKABLE: Final = ("preexec_fn", "pass_fds", "shell", "executable", "process_group")
"""Parameters of `Popen` that must not be used."""


class _Program(str):
    """The path of this Python, for processes that may be forked."""

    __slots__ = ()


FORKED: Final = _Program(sys.executable)


class Forker:
    """The process that has imported the gateway. It is started by the first use, and ends with this process.

    It reads the environment of when this was made: a test that is the first to use it may have changed some of it for itself.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._control: socket.socket | None = None
        self._environment = _read_at_start(os.environ)

    def start(
        self, command: list[str], folder: str, environment: Mapping[str, str], session: bool, fds: list[int]
    ) -> int:
        """Return the process id of a child that runs `command`, or 0 where it must be started from nothing."""
        with self._lock:
            if self._control is None:
                self._control = _forker(self._environment)
            if _read_at_start(environment) != self._environment:
                return 0
            message = json.dumps([command, folder, dict(environment), session]).encode()
            _adopt_orphans(True)
            try:
                socket.send_fds(self._control, [message], fds)
                pid = self._control.recv(64)
                if not pid or self._control.recv(64) != b"+":
                    raise RuntimeError("the process that tests fork others from has ended: its reason is above")
            finally:
                _adopt_orphans(False)
        return int(pid)


def _forker(read_at_start: Mapping[str, str]) -> socket.socket:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    of_one_test = {*_read_at_start(os.environ), "GATEWAY_CRASH_AT"}
    environment = {name: value for name, value in os.environ.items() if name not in of_one_test}
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.forker", str(theirs.fileno())],
            cwd=Path(__file__).parent.parent,
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            env=environment | dict(read_at_start),
        )

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


def _adopt_orphans(yes: bool) -> None:
    """Let the grandchildren whose parent ends become children of this process, or no more."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, int(yes))


def _read_at_start(environment: Mapping[str, str]) -> dict[str, str]:
    names = [name for name in environment if name.startswith(READ_AT_START) and name != "PYTHONUNBUFFERED"]
    return {name: environment[name] for name in names}


def _install() -> None:
    """Let `Popen` fork the processes whose program is `FORKED`."""
    execute: Any = subprocess.Popen._execute_child  # type: ignore[attr-defined]
    parameters = inspect.signature(execute)
    forker = Forker()

    def start(self: Any, *values: Any, **named: Any) -> None:
        given = parameters.bind(self, *values, **named).arguments
        command = given["args"]
        if not isinstance(command, str | bytes | os.PathLike) and isinstance(next(iter(command)), _Program):
            unusual = [name for name in FORKABLE if given.get(name) not in (None, False, (), -1)]
            pipes = ("p2cread", "c2pwrite", "errwrite")
            fds = [fd if (fd := given[name]) != -1 else number for number, name in enumerate(pipes)]
            environment = os.environ if given["env"] is None else given["env"]
            folder = str(Path(given["cwd"] or ".").absolute())
            words = [os.fsdecode(word) for word in command]
            if not unusual and (pid := forker.start(words, folder, environment, given["start_new_session"], fds)):
                self.pid, self._child_created = pid, True
                ends = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
                self._close_pipe_fds(*(given[name] for name in ends))
                return
        execute(self, *values, **named)

    subprocess.Popen._execute_child = start  # type: ignore[attr-defined]


if sys.platform == "linux":
    _install()
