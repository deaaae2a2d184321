"""Which plugin may change the request: one that says so, in its `on_request` or its `explain`."""

from __future__ import annotations

from gateway.chain.entry import Entry
from gateway.errors import GatewayError


def editor_of(entry: Entry) -> str:
    """Return the name of the plugin that changes the request. Raises `GatewayError` for one that does not declare it."""
    if not entry.plugin.edits:
        kind = type(entry.plugin).__name__
        raise GatewayError(f"'{entry.name}' changes the request without declaring it: write `edits = True` in {kind}")
    return entry.name


class ExplainHooks:
    """Stands in for the request hooks while a plugin explains itself: it may change the request as in `on_request`."""

    def __init__(self, entry: Entry) -> None:
        self._entry = entry

    async def before_body(self) -> None:
        """Do nothing: there are no steps."""

    def editor(self) -> str:
        """Return the name of the plugin. Raises `GatewayError` where it does not declare that it changes requests."""
        return editor_of(self._entry)
