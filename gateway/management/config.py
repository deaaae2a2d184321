"""The operation on the configuration that is served. The file rules: nothing is changed here."""

from __future__ import annotations

import asyncio

import msgspec

from gateway.management.desk import LocalDesk
from gateway.management.operation import Scope, operation
from gateway.request_id import utc
from gateway.tools.shown_file import shown_lines


class Refusal(msgspec.Struct, frozen=True):
    """Why the last change of the file was not taken up, and when."""

    reason: str
    at: str


class Served(msgspec.Struct, frozen=True):
    """The configuration that is served. `lines` are those of its file, with `(hidden)` where a secret may be.

    `time_zone`: where days begin, for budgets and for dates without a time.

    `generation` counts the configurations that the gateway has served since its start; null where no running gateway is asked.
    `refused` is null where the file is served as it is.
    """

    path: str
    time_zone: str
    lines: list[str]
    generation: int | None
    refused: Refusal | None


@operation("GET", "/config", Scope.READ)
async def read(desk: LocalDesk) -> Served:
    """Return the configuration as it is served, line by line, without secrets, and the last change that was refused."""
    running, document = desk.running, desk.loaded.document
    lines = await asyncio.to_thread(shown_lines, document)
    refused = None
    if running is not None and running.refused is not None:
        refused = Refusal(document.hide(running.refused.reason), utc(round(running.refused.at * 1000)))
    return Served(
        str(document.path), desk.config.time_zone, lines, None if running is None else running.generation, refused
    )
