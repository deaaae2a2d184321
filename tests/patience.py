"""How long a test waits for what is sure to come."""

from __future__ import annotations

from typing import Final

PATIENCE_S: Final = 50
"""Seconds that only a fault takes, however busy the machine is; fewer than a channel's timers have by default."""
