"""Every response names the channel that served it, also streams."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.store.client.client import Client
from gateway.testing import FakeUpstream, configuration, running
from plugins.examples.response_stamp import ResponseStamp

USE = "plugins.examples.response_stamp:ResponseStamp"
HEADERS = {"x-served-by": "{channel}/{model} after {attempts}", "x-house": "ours, {as it stands}"}


async def test_a_stream_is_stamped_and_a_refusal_is_not(store_url: str, client: Client, tmp_path: Path) -> None:
    async with FakeUpstream(pace_s=0) as upstream:
        yaml = configuration(upstream.base_url, {"use": USE, "with": {"headers": HEADERS}})
        async with running(yaml, tmp_path, store_url) as gateway:
            token = await gateway.token()
            answer = await gateway.ask(token)
            assert answer.status == 200
            assert answer.headers["x-served-by"] == "fake/words after 1"
            assert answer.headers["x-house"] == "ours, {as it stands}"
            assert b"[DONE]" in answer.body
            refused = await gateway.ask(token, model="unknown")
            assert refused.status == 404
            assert "x-served-by" not in refused.headers


@pytest.mark.parametrize("name", ["content-type", "x-request-id", "X-Served-By", "x-a\r\nx-b", ""])
def test_a_header_name_that_is_not_allowed_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="must begin with x-"):
        ResponseStamp(headers={name: "value"})


@pytest.mark.parametrize("value", ["a\r\nset-cookie: b", "größer"])
def test_a_value_that_is_not_printable_ascii_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match="printable ASCII"):
        ResponseStamp(headers={"x-house": value})
