"""The process that `tests.forked` forks others from: `python -m tests.forker DESCRIPTOR`.

Each request is a packet with the command, the folder, the environment and whether the process begins a session of its own, and
with three descriptors. The answers are the process id, and `+` once the process is a child of the process that asked.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
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
import threading
import time
from pathlib import Path
from typing import Any, TextIO

import msgspec
import typer.main

import gateway
import plugins
from gateway.chain.loading import plugin_class
from gateway.cli.commands import COMMANDS, Commands
from gateway.config.schema import SECTIONS, Config, PluginEntry
from gateway.runtime.worker import new_loop
from tests.forked import MAX_MESSAGE


def import_all() -> None:
    """Import all modules of the gateway and its plugins, and what they use."""
    for package in (gateway, plugins):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if found.name != "gateway.__main__" and ".examples" not in found.name:
                importlib.import_module(found.name)


def work_out() -> None:
    """Work out what every process works out once: what settings there are, the parameters of the commands, the event loop."""
    new_loop()
    plugin_class("auth")  # reads what is installed
    for kind in (Config, PluginEntry, *SECTIONS.values()):
        with contextlib.suppress(msgspec.ValidationError):
            msgspec.convert({}, kind)
    commands: Any = typer.main
    commands.get_params_from_function = functools.cache(commands.get_params_from_function)
    for name in COMMANDS:
        Commands()[name]


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


def run(module: str) -> None:
    """Run the module, and end as Python does but for one thing: what the process was forked with is not freed.

    That takes more than half of the time of a short command, as each object that is touched is copied first.
    """
    code = 0
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        if not isinstance(ended.code, int | None):
            raise
        code = ended.code or 0
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    gc.collect()
    with contextlib.suppress(OSError):  # else Python says it at the end
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code & 0xFF)
    sys.exit(code)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    import_all()
    work_out()
    gc.collect()
    gc.freeze()
    command = next_process(socket.socket(fileno=int(sys.argv[1])))
    if command is not None:
        _, _, module, *arguments = command
        sys.argv[1:] = arguments
        run(module)
