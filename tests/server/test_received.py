"""A received request offers what aiohttp's server uses of its message, of the reader of its body and of its request."""

from __future__ import annotations

import inspect
import re

from aiohttp import web

from gateway.server.protocol import AIOHTTP_NAMES, ParsedRequest

OVERRIDDEN = ("handle_error", "log_access")
"""Methods of aiohttp's that use more of a request: the first is replaced, the second does nothing without a log."""


def names(variable: str) -> set[str]:
    """Return the attributes of a variable that aiohttp's handler uses, in the methods that run."""
    methods = [
        inspect.getsource(each)
        for name, each in vars(web.RequestHandler).items()
        if inspect.isfunction(each) and name not in OVERRIDDEN
    ]
    return set(re.findall(rf"(?<![\w.]){variable}\.(\w+)", "\n".join(methods)))


def test_it_has_what_aiohttp_uses_of_a_request() -> None:
    used = names("request") | names("self._current_request")
    assert used == set(AIOHTTP_NAMES), (
        "this version of aiohttp differs: read its web_protocol.py before you raise the version"
    )
    assert all(hasattr(ParsedRequest, name) for name in used)


def test_it_has_what_aiohttp_uses_of_a_message_and_of_a_reader() -> None:
    assert names("payload") == {"is_eof", "readany", "set_exception"}
    assert all(hasattr(ParsedRequest, name) for name in names("payload"))
    assert names("message") <= {"exc", "message", "status"}, "those are of an error, which is no request"
