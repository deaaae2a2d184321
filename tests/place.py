"""Where the gateway of a test is."""

from __future__ import annotations

from pathlib import Path

Place = tuple[Path, str]
"""The folder of a test, and the URL of its empty store: the last arguments of `running`, the first ones of `services`."""
