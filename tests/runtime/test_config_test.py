"""The test of a configuration names what a plugin does wrong, and ends in time whatever the plugin does."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gateway.base.errors import GatewayError
from gateway.config.schema import Loaded, load
from gateway.fake_upstream import FakeUpstream
from gateway.runtime.active_config import ConfigReport, ConfigTest

HEAD = "import asyncio, os, time\nfrom gateway import Plugin\n"
CHAIN = "plugins: [{use: auth}, {use: 'MODULE:P'}, {use: model-routing}]\n"
LATE_S = 0.3

HANGS = {
    "at import": (
        "while True: time.sleep(3600)",
        "importing `MODULE` failed: TimeoutError: it takes longer than 0.3 s",
    ),
    "at import, and ignores errors": (
        "while True:\n    try:\n        time.sleep(3600)\n    except BaseException:\n        pass",
        "plugins[1]: 'MODULE:P' did not come to an end within 0.3 s",
    ),
    "in its constructor": (
        "class P(Plugin):\n    def __post_init__(self):\n        time.sleep(3600)",
        "making `MODULE:P` failed: TimeoutError: it takes longer than 0.3 s",
    ),
    "in its start": (
        "class P(Plugin):\n    async def start(self, services):\n        time.sleep(3600)",
        "'MODULE:P' does not start: TimeoutError: it takes longer than 0.3 s",
    ),
    "waiting in its start": (
        "class P(Plugin):\n    async def start(self, services):\n        await asyncio.sleep(3600)",
        "'MODULE:P' did not start within 0.3 s",
    ),
}


@pytest.mark.parametrize("where", HANGS)
def test_a_plugin_that_hangs_is_named(tmp_path: Path, store_url: str, where: str) -> None:
    text, reason = HANGS[where]
    name = f"hangs_{list(HANGS).index(where)}_0815"
    (tmp_path / f"{name}.py").write_text(f"{HEAD}{text}\n")
    file = tmp_path / "gateway.yaml"
    file.write_text(f"{CHAIN.replace('MODULE', name)}data: {tmp_path}/data\n")
    with ConfigTest(load(file, {}), store_url, limit_s=LATE_S) as test, pytest.raises(GatewayError) as refused:
        test.wait()
    assert reason.replace("MODULE", name) in str(refused.value)
    assert "\n" not in str(refused.value)
    assert str(refused.value).startswith(f"{file}:1: plugins[1]")


def test_a_good_configuration_has_a_report(tmp_path: Path, store_url: str) -> None:
    file = tmp_path / "gateway.yaml"
    text = "plugins: [{use: auth}, {use: model-routing}]\ngroups: {default: {}}\n"
    text += "channels: {a: {base_url: http://h, api_key: ollama}}\n"
    file.write_text(f"{text}data: {tmp_path}/data\n")
    with ConfigTest(load(file, {}), store_url) as test:
        assert test.wait() == ConfigReport(
            ["auth", "model-routing"],
            ["channels.a: a credential of fewer than 12 characters is not removed from the upstream's answers"],
        )


async def test_a_new_credential_that_its_upstream_refuses_does_not_replace_one_that_works(tmp_path: Path) -> None:
    file = tmp_path / "gateway.yaml"

    def with_key(key: str) -> Loaded:
        channel = f"channels:\n  a: {{base_url: '{upstream.base_url}', api_key: {key}}}\n"
        file.write_text(f"plugins: [{{use: auth}}, {{use: model-routing}}]\n{channel}data: {tmp_path}/data\n")
        return load(file, {})

    async with FakeUpstream(key="the-new-key-4711") as upstream:
        before = with_key("the-old-key-4711").config
        with ConfigTest(with_key("the-new-key-4711"), before=before) as test:
            assert (await asyncio.to_thread(test.wait)).plugins
        with ConfigTest(with_key("a-wrong-key-4711"), before=before) as test, pytest.raises(GatewayError) as refused:
            await asyncio.to_thread(test.wait)
        assert "channels.a: its upstream refuses the new credential (401)" in str(refused.value)
        assert "wrong-key" not in str(refused.value)
        asked = len(upstream.requests)
        with ConfigTest(with_key("the-old-key-4711"), before=before) as test:
            await asyncio.to_thread(test.wait)
        assert len(upstream.requests) == asked, "a credential that is served is not asked for"
    with ConfigTest(with_key("a-wrong-key-4711"), before=before) as test:
        assert (await asyncio.to_thread(test.wait)).plugins, "an upstream that is away refuses nothing"
