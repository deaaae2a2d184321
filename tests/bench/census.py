"""A plugin that counts the tasks of its worker, each second, into a file that is named by the process."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from gateway import Plugin, Services


class Census(Plugin):
    """Looks at no request."""

    folder: str

    async def start(self, services: Services) -> None:
        """Begin to count."""
        self._count()

    async def stop(self) -> None:
        """Count no more."""
        self._next.cancel()

    def _count(self) -> None:
        Path(self.folder, f"tasks-{os.getpid()}").write_text(str(len(asyncio.all_tasks())))
        self._next = asyncio.get_running_loop().call_later(1, self._count)
