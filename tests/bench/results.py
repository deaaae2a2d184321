"""Results of measurements, stored as JSON: a file for each part."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from tests.bench.bench import Rows

FOLDER: Final = Path(__file__).parent / "results"


class Result(msgspec.Struct):
    """The rows of one part, and when, where and with which versions they were measured. `busy`: load average at the end."""

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


def save_result(folder: Path, part: str, result: Result) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{part}.json").write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n")


def load_results(folder: Path) -> dict[str, Result]:
    """Return the results of all measured parts, by name."""
    return {file.stem: msgspec.json.decode(file.read_bytes(), type=Result) for file in sorted(folder.glob("*.json"))}
