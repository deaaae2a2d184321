"""A secret's file that is overwritten in place is taken up, also with as many bytes and the time that it had before."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.admin.actions.links import AdminToken
from gateway.config.schema import Config
from gateway.runtime import active_config
from gateway.server import tls
from gateway.store import pepper
from tests.patience import PATIENCE_S

VERSIONS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "configuration": ("key", active_config._version),
    "certificate": ("key.pem", tls._version),
    "pepper": ("pepper", lambda file: pepper._version(file.parent)),
    "admin token": ("admin.token", lambda file: AdminToken(Config(data=str(file.parent)))._look()),
}


@pytest.mark.parametrize(("name", "version"), VERSIONS.values(), ids=VERSIONS)
def test_an_overwritten_file_has_another_version(
    tmp_path: Path, name: str, version: Callable[[Path], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GATEWAY_ADMIN_TOKEN", raising=False)
    file = tmp_path / name
    file.write_text("x" * 40)
    before, status = version(file), file.stat()
    deadline = time.monotonic() + min(PATIENCE_S, 5)
    while version(file) == before and time.monotonic() < deadline:  # the clock of files has ticks of some milliseconds
        time.sleep(0.005)
        file.write_text("y" * 40)
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert version(file) != before
