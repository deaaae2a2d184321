"""What a call of an upstream relies on in aiohttp."""

from __future__ import annotations

import inspect
from pathlib import Path

from aiohttp import ClientRequest, TCPConnector
from aiohttp.connector import Connection

import gateway
from gateway.proxy.upstream import AIOHTTP_ATTRIBUTES

ROOT = Path(gateway.__file__).parent


def test_aiohttp_has_the_attributes_that_are_not_public() -> None:
    assert [name for name in AIOHTTP_ATTRIBUTES if not hasattr(Connection, name)] == []


def test_the_connector_takes_a_request_without_a_session() -> None:
    """`UpstreamPool.open` passes these three; aiohttp documents the connector only behind a session."""
    assert list(inspect.signature(TCPConnector.connect).parameters) == ["self", "req", "traces", "timeout"]
    wanted = {"method", "url", "loop", "ssl", "proxy", "proxy_headers"}
    assert wanted <= inspect.signature(ClientRequest.__init__).parameters.keys()


def test_no_other_file_calls_the_connector() -> None:
    users = {str(path.relative_to(ROOT)) for path in ROOT.rglob("*.py") if "TCPConnector" in path.read_text()}
    assert users == {"proxy/pool.py"}
