"""The process that `tests.forked` forks others from: `python -m tests.forker DESCRIPTOR`.

Each request is a packet with the command, the folder, the environment and whether the process begins a session of its own, and
with three descriptors. The answers are the process id, and `+` once the process is a child of the process that asked.
"""

from __future__ import annotations

import gc
import importlib
import io
import json
import os
import pkgutil
import runpy
import signal
import socket
import sys
import time
from pathlib import Path
from typing import TextIO

import gateway
import plugins
from tests.forked import MAX_MESSAGE


def import_all() -> None:
    """Import all modules of the gateway and its plugins, and what they use."""
    for package in (gateway, plugins):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if found.name != "gateway.__main__" and ".examples" not in found.name:
                importlib.import_module(found.name)


def next_process(control: socket.socket) -> list[str] | None:
    """Return the command of a process that was forked, in that process, or None at the end."""
    while True:
        message, descriptors, *_ = socket.recv_fds(control, MAX_MESSAGE, 3)
        if not message:
            return None
        if os.fork() == 0:
            pid = os.fork()
            if pid:  # ends at once, so that the other is adopted
                control.send(str(pid).encode())
                os._exit(0)
            control.close()
            command, folder, environment, session = json.loads(message)
            become(command, folder, environment, session, descriptors)
            return [str(word) for word in command]
        os.wait()
        for descriptor in descriptors:
            os.close(descriptor)
        control.send(b"+")


def become(command: list[str], folder: str, environment: dict[str, str], session: bool, fds: list[int]) -> None:
    """Make this process what Python is after its start, before it runs a module."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if session:
        os.setsid()
    for number, descriptor in enumerate(fds):
        os.dup2(descriptor, number)
    os.closerange(3, max(fds) + 1)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    for name, number in (("stdin", 0), ("stdout", 1), ("stderr", 2)):
        stream = opened(number, getattr(sys, name))
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    sys.path[0] = str(Path.cwd())
    sys.orig_argv[:] = command
    if "GATEWAY_CRASH_AT" in os.environ:
        importlib.reload(sys.modules["gateway.base.crash_points"])


def opened(number: int, like: TextIO) -> TextIO:
    """Return a standard stream as Python opens it at its start, with the encoding of `like`."""
    unbuffered = number > 0 and bool(os.environ.get("PYTHONUNBUFFERED"))
    raw = os.fdopen(number, "wb" if number else "rb", 0 if unbuffered else -1, closefd=False)
    lines = number == 2 or raw.isatty()
    return io.TextIOWrapper(raw, like.encoding, like.errors, line_buffering=lines, write_through=unbuffered)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    import_all()
    gc.collect()
    gc.freeze()
    command = next_process(socket.socket(fileno=int(sys.argv[1])))
    if command is not None:
        _, _, module, *arguments = command
        sys.argv[1:] = arguments
        runpy.run_module(module, run_name="__main__", alter_sys=True)
