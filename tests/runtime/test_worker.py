"""A worker without uvloop: what fails in it is shown without the import that failed before."""

from __future__ import annotations

import signal
import socket
import sys
from pathlib import Path

import pytest

from gateway.config.schema import load
from gateway.runtime import worker


def test_an_error_without_uvloop_has_nothing_about_uvloop(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(*_: object) -> None:
        raise RuntimeError("a plugin's bug")

    monkeypatch.setitem(sys.modules, "uvloop", None)
    monkeypatch.setattr(worker, "serve", fails)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(RuntimeError, match="a plugin's bug") as raised, socket.socket() as listener:
        worker.run(load(Path(__file__).parents[2] / "config/demo.yaml"), "", listener, lambda: None)
    signal.signal(signal.SIGTERM, before)
    assert (raised.value.__context__, raised.value.__cause__) == (None, None)
