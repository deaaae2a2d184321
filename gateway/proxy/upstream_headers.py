"""Headers between the gateway and an upstream: the caller's trace, which is passed on, and what is kept of an answer's."""

from __future__ import annotations

import re
from collections.abc import Mapping, MutableMapping
from typing import Final

from multidict import MultiDict, MultiDictProxy

UPSTREAM_ID: Final = "x-request-id"
OTHER_ID: Final = "request-id"
"""Anthropic's name of the same."""
READ: Final = frozenset(
    (
        *(b"content-type", b"content-encoding", b"content-length", b"transfer-encoding"),
        *(UPSTREAM_ID.encode(), OTHER_ID.encode()),
        *(b"retry-after", b"retry-after-ms", b"x-should-retry", b"date"),
    )
)
"""The headers of an answer that the gateway reads. The others, often twenty, are not kept."""
MAX_ID: Final = 128
ID: Final = re.compile(r"[!-~]+")
TRACE_VALUE: Final = re.compile(r"[\x21-\x7e][\x20-\x7e]{0,511}")


def trace_lines(headers: Mapping[str, str]) -> str:
    """Return the lines of a request's head that pass on a trace (W3C Trace Context): the caller's, or that of a plugin.

    Several `tracestate` are one list. They mean nothing without one `traceparent`.
    """
    parent = headers.get("traceparent")
    if parent is None or not TRACE_VALUE.fullmatch(parent):
        return ""
    states = headers.get("tracestate")
    if isinstance(headers, (MultiDict, MultiDictProxy)):
        if len(headers.getall("traceparent")) > 1:
            return ""
        states = ",".join(headers.getall("tracestate", ()))
    if not states or not TRACE_VALUE.fullmatch(states):
        return f"traceparent: {parent}\r\n"
    return f"traceparent: {parent}\r\ntracestate: {states}\r\n"


def kept_id(headers: Mapping[str, str]) -> str:
    """Return the id that an upstream gave its answer, up to 128 characters; empty where it is not visible ASCII."""
    value = headers.get(UPSTREAM_ID) or headers.get(OTHER_ID, "")
    return value[:MAX_ID] if value and ID.fullmatch(value) else ""


def keep_only_id(headers: MutableMapping[str, str]) -> None:
    """Free the headers of an answer that is passed on. Providers send some kilobytes of them."""
    upstream_id = headers.get(UPSTREAM_ID) or headers.get(OTHER_ID)
    headers.clear()
    if upstream_id is not None:
        headers[UPSTREAM_ID] = upstream_id
