"""The example plugins together, in the chain of a whole gateway."""

from __future__ import annotations

from pathlib import Path

import msgspec

from gateway.store.client.client import Client
from gateway.testing import FakeUpstream, configuration, running

EXAMPLES: list[dict[str, object]] = [
    {"use": "plugins.examples.address_allow_list:AddressAllowList", "with": {"networks": ["127.0.0.0/8"]}},
    {"use": "plugins.examples.prompt_size:PromptSize", "with": {"tokens": 1000, "groups": {"default": 100}}},
    {"use": "plugins.examples.prompt_patterns:PromptPatterns"},
    {"use": "plugins.examples.response_stamp:ResponseStamp"},
    {"use": "plugins.examples.first_token_alarm:FirstTokenAlarm"},
]


async def test_the_five_examples_work_together_and_refuse_in_the_common_error_shape(
    store_url: str, client: Client, tmp_path: Path
) -> None:
    async with FakeUpstream(pace_s=0) as upstream:
        async with running(configuration(upstream.base_url, *EXAMPLES), tmp_path, store_url) as gateway:
            token = await gateway.token()
            good = await gateway.ask(token, "Tell me a story")
            assert (good.status, good.headers["x-served-by"]) == (200, "fake")
            large = await gateway.ask(token, "x" * 1000)
            assert (large.status, b'"code":"prompt_too_large"' in large.body) == (413, True)
            card = await gateway.ask(token, "4111 1111 1111 1111")
            assert (card.status, b'"code":"prompt_forbidden"' in card.body) == (400, True)
        assert len(upstream.requests) == 1


async def test_a_forbidden_address_is_refused_before_the_token_is_checked(
    store_url: str, client: Client, tmp_path: Path
) -> None:
    closed = {**EXAMPLES[0], "with": {"networks": ["192.0.2.0/24"]}}
    async with FakeUpstream(pace_s=0) as upstream:
        chain = configuration(upstream.base_url).replace('{"use":"auth"}', f'{_json(closed)},{{"use":"auth"}}')
        async with running(chain, tmp_path, store_url) as gateway:
            refused = await gateway.ask("no token at all")
            assert (refused.status, b'"code":"address_forbidden"' in refused.body) == (403, True)


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
