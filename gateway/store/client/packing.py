"""The bytes of a command, as a server reads them (RESP): packed by a compiled function, else by hiredis.

hiredis formats each part with `sprintf`: the 80 parts of a request's commands take 110,000 instructions, a tenth of the request.
The compiled function (`_pack.pyx`) returns the same bytes for a tenth of that.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from hiredis import pack_command

from gateway import compiled

Argument = str | bytes | int
Command = tuple[Argument, ...]

SOURCE: Final = Path(__file__).with_name("_pack.pyx")

_pack, _ = compiled.load("gateway.store.client._pack", SOURCE)
pack: Final[Callable[[Command], bytes]] = _pack.pack if _pack else pack_command  # type: ignore[assignment, unused-ignore]
"""Returns a command in the form in which it is sent. Raises `TypeError` for an argument of another type."""
