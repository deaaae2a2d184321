"""The private attributes and undocumented behaviour of aiohttp that calls of upstreams rely on."""

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
    parameters = {"method", "url", "loop", "ssl", "proxy", "proxy_headers"}
    assert parameters <= inspect.signature(ClientRequest.__init__).parameters.keys()


def test_no_other_file_calls_the_connector() -> None:
    files = {str(path.relative_to(ROOT)) for path in ROOT.rglob("*.py") if "TCPConnector" in path.read_text()}
    assert files == {"proxy/pool.py"}
