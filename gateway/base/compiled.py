"""Modules that are compiled: each is built from a Cython file beside it where an installation can, see `deploy/hatch_build.py`.

Every user of one has the same in Python, which is used where there is none, and with `GATEWAY_PURE=1`.
"""

from __future__ import annotations

import hashlib
import os
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Final

MODULES: Final = ("gateway.chat._plain", "gateway.proxy._pass", "gateway.server._head", "gateway.store.client._pack")
SHARED: Final = Path(__file__).parents[1] / "chat" / "_plain.pxd"
"""What several of the sources have in common. A build is of both."""


def load(name: str, source: Path) -> tuple[ModuleType | None, str]:
    """Return a compiled module, which has the digest of its sources as `SOURCE`; or None and why it is not used."""
    if os.environ.get("GATEWAY_PURE", "0") not in ("", "0"):
        return None, "GATEWAY_PURE is set"
    try:
        compiled = import_module(name)
    except ImportError:
        return None, "the compiled path is not built, for which an installation needs Cython and a C compiler"
    if source.exists() and digest(source) != compiled.SOURCE:
        return None, "the compiled path was built from another version, install again"
    return compiled, ""


def digest(source: Path) -> str:
    """Return the digest that a build has of its sources."""
    return hashlib.sha256(source.read_bytes() + SHARED.read_bytes()).hexdigest()[:16]


def description() -> str:
    """Return whether events take the compiled path, for people: with which modules not, and why."""
    package = Path(__file__).parents[2]
    reasons = {name: load(name, package.joinpath(*name.split(".")).with_suffix(".pyx"))[1] for name in MODULES}
    unused = [name for name, reason in reasons.items() if reason]
    if not unused:
        return "events by the compiled path"
    why = "; ".join(dict.fromkeys(filter(None, reasons.values())))
    if len(unused) == len(MODULES):
        return f"events in pure Python: {why}"
    return f"events by the compiled path, but without {', '.join(unused)}: {why}"
