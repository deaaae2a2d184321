"""A plugin that writes the number of tasks of its worker to the file `tasks-PID`, once a second."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from gateway import Plugin, Services


class Census(Plugin):
    """A plugin that counts tasks and handles no request."""

    folder: str

    async def start(self, services: Services) -> None:
        """Start counting."""
        self._count()

    async def stop(self) -> None:
        """Stop counting."""
        self._next.cancel()

    def _count(self) -> None:
        Path(self.folder, f"tasks-{os.getpid()}").write_text(str(len(asyncio.all_tasks())))
        self._next = asyncio.get_running_loop().call_later(1, self._count)
