"""The results, stored as JSON: a file for each part."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from tests.bench.bench import Rows

FOLDER: Final = Path(__file__).parent / "results"


class Result(msgspec.Struct):
    """One part's rows, and when, where and on what they were measured. `busy` is the load average at the end."""

    commit: str
    moment: str
    machine: str
    versions: str
    gateways: dict[str, str]
    busy: float
    rounds: int
    seconds: float
    scale: float
    rows: Rows


def keep(folder: Path, part: str, result: Result) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{part}.json").write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n")


def kept(folder: Path) -> dict[str, Result]:
    """Return all parts that were measured, by name."""
    return {file.stem: msgspec.json.decode(file.read_bytes(), type=Result) for file in sorted(folder.glob("*.json"))}
