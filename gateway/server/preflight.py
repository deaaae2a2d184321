"""Preflight requests: a browser asks whether a page of another origin may send a request.

They have no token, so they are answered before the chain: without a record and without a call of the store.
"""

from __future__ import annotations

from typing import Final

from gateway.errors import Refused
from gateway.server.received import ReceivedRequest

NOT_NAMED: Final = (
    "Pages of this origin may not call this gateway. A token does not belong in a browser: call from a server. Or the operator "
    "names the origin in `port.cors_origins`."
)


def is_preflight(request: ReceivedRequest) -> bool:
    """Return whether a request is a browser's question about another one."""
    headers = request.headers
    return request.method == "OPTIONS" and "Origin" in headers and "Access-Control-Request-Method" in headers


def refused_preflight(request: ReceivedRequest) -> Refused | None:
    """Return what a preflight request is answered that is not granted; None for any other request."""
    if not is_preflight(request):
        return None
    return Refused(405, "method_not_allowed", NOT_NAMED, headers={"Allow": "GET, POST"})
