"""Plugins run in the order of the YAML list: swapping two changes the behaviour, or the start fails with the reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.base.errors import Misconfigured
from gateway.fake_upstream import FakeUpstream
from gateway.store.client.client import Client
from gateway.testing import running
from tests.whole.conftest import configuration
from tests.whole.raw import ask, chat

LIMIT = "  - use: rate-limit\n    with: {requests_per_minute: 1}\n"
QUOTA = "  - use: quota\n"


def chain(*middle: str) -> str:
    return "plugins:\n  - use: usage-logger\n  - use: auth\n" + "".join(middle) + "  - use: model-routing\n"


@pytest.mark.parametrize(
    ("middle", "code"), [((LIMIT, QUOTA), "rate_limited"), ((QUOTA, LIMIT), "insufficient_balance")]
)
async def test_the_first_plugin_of_the_list_refuses_first(
    upstream: FakeUpstream, store_url: str, client: Client, tmp_path: Path, middle: tuple[str, ...], code: str
) -> None:
    async with running(configuration(upstream.base_url, chain=chain(*middle)), tmp_path, store_url) as gateway:
        token = await gateway.token(credit=600)
        assert (await ask(gateway.port, chat(token))).status == 200
        await gateway.gateway.runner.wait_ended()
        await gateway.store.wallet.adjust("tester", "empty", -500, "a test")
        assert (await ask(gateway.port, chat(token))).error["code"] == code


async def test_an_order_that_lacks_a_fact_is_refused_with_its_remedy(
    upstream: FakeUpstream, store_url: str, tmp_path: Path
) -> None:
    swapped = "plugins:\n  - use: quota\n  - use: auth\n  - use: model-routing\n"
    with pytest.raises(
        Misconfigured, match="'quota' needs Caller, which nothing above it provides: move 'auth' above 'quota'"
    ):
        async with running(configuration(upstream.base_url, chain=swapped), tmp_path, store_url):
            pass


async def test_a_disabled_plugin_has_no_effect(
    upstream: FakeUpstream, store_url: str, client: Client, tmp_path: Path
) -> None:
    free = chain(LIMIT.replace("  - use", "  - enabled: false\n    use"))
    async with running(configuration(upstream.base_url, chain=free), tmp_path, store_url) as gateway:
        token = await gateway.token(credit=0)
        assert [(await ask(gateway.port, chat(token))).status for _ in range(3)] == [200, 200, 200]
