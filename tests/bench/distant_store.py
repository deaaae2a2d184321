"""A store at a distance: a server of its own, behind a proxy that passes every byte on half a millisecond after it came."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from gateway.store.embedded import SETTINGS, find_server
from tests.bench.process import listens, running
from tests.cli.processes import free_port

DELAY_US: Final = 500
"""Microseconds in each direction: a round trip takes one millisecond more."""


@contextmanager
def distant_store(folder: Path, cores: str, delay_us: int = DELAY_US) -> Iterator[str]:
    """Run a store on these cores and the proxy on the core of the load, and yield the URL at which the store is reached.

    Needs a C compiler. A folder with data from an earlier run is used again.
    """
    data, path, proxy, port = folder / "store", folder / "store.sock", folder / "distance", free_port()
    data.mkdir(exist_ok=True)
    source = Path(__file__).with_name("distance.c")
    subprocess.run(["cc", "-O2", "-o", str(proxy), str(source)], check=True)
    server = [find_server(), *SETTINGS, "--dir", str(data), "--unixsocket", str(path)]
    delaying = [str(proxy), str(port), str(path), str(delay_us)]
    with (
        running(server, cores, folder / "store.log", path.exists),
        running(delaying, "1", folder / "distance.log", lambda: listens(port)),
    ):
        yield f"redis://127.0.0.1:{port}"
