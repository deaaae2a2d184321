"""What is said of the compiled modules, and what turns them off."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.base import compiled

ROOT = Path(__file__).parents[2]


def described(**environment: str) -> str:
    code = "from gateway.base import compiled; print(compiled.description())"
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ | environment, cwd=ROOT
    )
    return run.stdout.strip()


def test_the_environment_turns_them_off() -> None:
    assert described(GATEWAY_PURE="1") == "events in pure Python: GATEWAY_PURE is set"
    assert described(GATEWAY_PURE="0") == described(GATEWAY_PURE="")


def test_one_that_is_not_used_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    stale = "the compiled path was built from another version, install again"

    def load(name: str, source: Path) -> tuple[None, str]:
        assert source.exists()
        return None, stale if name == "gateway.chat._plain" else ""

    monkeypatch.setattr(compiled, "load", load)
    assert compiled.description() == f"events by the compiled path, but without gateway.chat._plain: {stale}"


def test_tests_that_run_once_import_nothing_that_is_compiled_for_events() -> None:
    """`make test` leaves them out where it runs the tests of streams again, in pure Python."""
    text = (ROOT / "Makefile").read_text()
    found = re.findall(r"\$\(patsubst %,tests/(\w+)/test_%\.py,([\w ]+)\)", text)
    modules = [f"tests.{folder}.test_{name}" for folder, names in found for name in names.split()]
    assert len(modules) > 1
    code = f"import sys; [__import__(name) for name in {modules}]; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert not {"gateway.chat.sse", "gateway.proxy.event_pass"} & set(run.stdout.split())
