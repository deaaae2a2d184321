"""Modules that are compiled where an installation can: from the same `.py`, with the C types of the `.pxd` beside it.

The one in Cython alone, `_pack.pyx`, does what hiredis does where nothing is compiled: of numbers and short texts it takes a tenth
of the instructions, and from Python with C types as many as hiredis.

`deploy/hatch_build.py` builds them into one folder, with the digests of what they were built from. From there Python imports them;
where one of the sources differs by now, and with `GATEWAY_PURE=1`, it imports the `.py`, as it does without a build. They touch
each other's attributes in C, so that all of them are used or none.

A class is worth its types where compiled code reads its attributes: of a class without types that costs more than in the
interpreter. In a loop over bytes, a constant of a module is an object, and a number is not.
"""

from __future__ import annotations

import hashlib
import os
import sys
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from typing import Final

MODULES: Final = (
    "gateway.chat.events",
    "gateway.chat.sse",
    "gateway.chat.tokens",
    "gateway.chat.usage",
    "gateway.metrics.series",
    "gateway.proxy.attempt",
    "gateway.proxy.caller",
    "gateway.proxy.ending",
    "gateway.proxy.framing",
    "gateway.proxy.relay",
    "gateway.proxy.upstream",
    "gateway.server.head",
    "gateway.store.client._pack",
    "gateway.store.client.connection",
)
INCLUDED: Final = "gateway.base.search"
"""What compiled modules have in C from its `.pxd`, and others from its `.py`."""
ROOT: Final = Path(__file__).parents[2]
FOLDER: Final = ROOT / "gateway" / "_compiled"
DIGESTS: Final = FOLDER / "sources.sha256"


class Finder:
    """Finds the compiled modules, before Python looks for their sources."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Return where a module is imported from, None for one that is not compiled."""
        return spec_from_file_location(name, built(name)) if name in MODULES else None


def built(name: str) -> Path:
    """Return the file that a module is built into, for this Python."""
    return FOLDER / f"{name}{EXTENSION_SUFFIXES[0]}"


def sources() -> list[Path]:
    """Return the files that the modules are built from."""
    files = [ROOT.joinpath(*name.split(".")) for name in (*MODULES, INCLUDED)]
    return [
        source for file in files for suffix in (".py", ".pxd", ".pyx") if (source := file.with_suffix(suffix)).exists()
    ]


def digests() -> str:
    """Return the digests of the sources, in the form of `sha256sum`."""
    return "".join(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.relative_to(ROOT)}\n" for file in sources())


def reason_against() -> str:
    """Return why the compiled modules are not used; empty where they are."""
    if os.environ.get("GATEWAY_PURE", "0") not in ("", "0"):
        return "GATEWAY_PURE is set"
    if not DIGESTS.exists() or not all(built(name).exists() for name in MODULES):
        return "the compiled modules are not built for this Python, for which an installation needs Cython and a C compiler"
    changed = set(digests().splitlines()) - set(DIGESTS.read_text().splitlines())
    names = ", ".join(sorted(line.split()[1] for line in changed))
    return f"{names} changed since the compiled modules were built, install again" if names else ""


WHY_PURE: Final = reason_against()

compiled: Final = False
"""What `cython.compiled` is in a module that is not compiled, where Cython is not installed."""


def use() -> None:
    """Let Python import the compiled modules, where they may be used."""
    if not WHY_PURE:
        sys.meta_path.insert(0, Finder)


def description() -> str:
    """Return whether events take the compiled path, for people, and why not."""
    return f"events in pure Python: {WHY_PURE}" if WHY_PURE else "events by the compiled path"
