"""Where the call of an upstream is, and what its response may not be."""

from __future__ import annotations

from enum import Enum


class InvalidResponse(Exception):
    """The upstream does not speak HTTP/1.1, or not as requested."""


class UpstreamState(Enum):
    """Where a call is. What arrives after one of the last four belongs to no request."""

    WAITING = "nothing was received"
    HEAD = "part of the response was received, and its head is not complete"
    BODY = "the head is complete, and the body is not"
    REUSABLE = "the response is complete, and the connection may carry another request"
    COMPLETE = "the response is complete, and the connection must be closed"
    FAILED = "the response broke off, or is invalid"
    LOST = "the connection was closed before anything was received"
