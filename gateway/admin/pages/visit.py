"""A visit: one request for a page, who sends it, and the desk at which its operations are done."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Final, TypeVar

import msgspec
from aiohttp import web

from gateway.admin.csv_file import CsvFiles
from gateway.admin.pages.door import Visitor
from gateway.admin.pages.forms import Form
from gateway.admin.pages.rendering import render
from gateway.errors import Refused
from gateway.management.desk import LocalDesk
from gateway.management.operation import Scope
from gateway.management.streamed import CsvFile

FILES: Final = web.AppKey("files", CsvFiles)
VISITOR: Final = web.RequestKey("visitor", Visitor)
"""Where a request has who looks, once that is known."""

Query = TypeVar("Query", bound=msgspec.Struct)


class Visit:
    """One request of somebody who has entered. `form` is empty where the request sends none."""

    def __init__(
        self,
        request: web.Request,
        visitor: Visitor,
        desk: LocalDesk,
        form: Form,
        is_still_in: Callable[[], Awaitable[bool]],
    ) -> None:
        """`is_still_in` tells later on whether the session has not ended."""
        self.request = request
        self.visitor = visitor
        self.desk = desk
        self.form = form
        self.is_still_in = is_still_in

    @property
    def path(self) -> Mapping[str, str]:
        """The variable parts of the address."""
        return self.request.match_info

    def may(self, scope: Scope) -> bool:
        """Return whether who looks has a scope."""
        return scope in self.visitor.actor.scopes

    def query(self, kind: type[Query]) -> Query:
        """Return the query of the address; what is empty in it counts as left out. Raises `Refused`."""
        values = {name: text for name, text in self.request.query.items() if text and name in kind.__struct_fields__}
        try:
            return msgspec.convert(values, kind, strict=False)
        except msgspec.ValidationError as error:
            raise Refused(400, "invalid_request", f"The address: {error}.") from None

    def page(self, template: str, status: int = 200, **context: Any) -> web.Response:
        """Return a page of a template."""
        return render(self.request, template, context_of(self.request) | context, status)

    async def send(self, file: CsvFile) -> web.StreamResponse:
        """Send a file, to be saved. Raises `Refused` where too many are being sent."""
        return await self.request.app[FILES].send(self.request, file)

    def go(self, path: str, done: str = "") -> web.Response:
        """Send the browser to another page, which says that something is done: `done` is one of `DONE`."""
        joint = "&" if "?" in path else "?"
        raise web.HTTPSeeOther(f"{path}{joint}done={done}" if done else path)


Page = Callable[[Visit], Coroutine[Any, Any, web.StreamResponse]]

DONE: Mapping[str, str] = {
    "created": "The account is there. It can be credited now, and gets its first token below.",
    "changed": "Changed, from the next request on.",
    "credited": "Credited.",
    "credited-before": "This transaction was booked before, so that nothing was changed now.",
    "adjusted": "Adjusted.",
    "suspended": "Suspended. Requests in progress end within two seconds.",
    "resumed": "Served again.",
    "closed": "Closed for good.",
    "token-disabled": "The token is refused from now on.",
    "token-enabled": "The token is accepted again.",
    "token-deleted": "The token is gone.",
    "channel-disabled": "The channel is called no more.",
    "channel-enabled": "The channel is called again.",
}
"""What pages say of what was done, by the words in their addresses."""


def context_of(request: web.Request) -> dict[str, Any]:
    """Return what every template has."""
    visitor = request.get(VISITOR)
    scopes = visitor.actor.scopes if visitor else frozenset()
    return {
        "visitor": visitor,
        "may": {str(scope): scope in scopes for scope in Scope},
        "path": request.path,
        "done": DONE.get(request.query.get("done", "")),
        "problem": None,
    }
