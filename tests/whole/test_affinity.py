"""A conversation stays with one credential of a channel, through all gateways of a store, so that its prompt is cached."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from gateway.fake_upstream import FakeUpstream
from gateway.fake_upstream.server import ReceivedRequest
from gateway.store.channels import CredentialState
from gateway.store.client.client import Client
from gateway.testing import Running, running
from tests.whole.aftermath import last_end_record
from tests.whole.raw import ask, chat
from tests.whole.test_reasons import pepper_in, until

KEYS = [f"canary-key-{name}" for name in ("zero", "one", "two", "three")]
FILE = """
channels: {{one: {{base_url: "{url}", api_keys: {keys}, session_header: x-session-affinity}}}}
models:
  words: {{input: 1, cached_input: 0.1, output: 2, max_output_tokens: 100, channels: [one]}}
  plain: {{input: 1, output: 2, max_output_tokens: 100, channels: [one]}}
groups: {{default: {{}}}}
plugins: [{{use: usage-logger}}, {{use: auth}}, {{use: quota}}, {{use: model-routing}}]
"""
CONVERSATIONS, TURNS = 12, 5


def by_conversation(requests: list[ReceivedRequest]) -> dict[str, set[str]]:
    """Return the credentials that were used, by the digest of the conversation that the upstream was told."""
    used = defaultdict(set)
    for request in requests:
        used[request.headers.get("x-session-affinity", "")].add(
            request.headers["Authorization"].removeprefix("Bearer ")
        )
    return dict(used)


async def talk(gateways: list[Running], token: str, model: str) -> None:
    """Send the turns of conversations, each through another gateway than the one before."""
    for turn in range(TURNS):
        for number in range(CONVERSATIONS):
            said = [{"role": "user", "content": f"conversation {number}, turn {each}"} for each in range(turn + 1)]
            body = {"model": model, "prompt_cache_key": f"conversation {number}", "messages": said}
            answer = await ask(gateways[(turn + number) % len(gateways)].port, chat(token, body))
            assert answer.status == 200, answer.body


async def test_conversations_keep_their_credentials_and_only_those_of_a_refused_one_move_and_come_back(
    store_url: str, client: Client, tmp_path: Path
) -> None:
    async with AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(FakeUpstream(pace_s=0, caches=True))
        folders = pepper_in([tmp_path / "one", tmp_path / "two"])
        text = FILE.format(url=upstream.base_url, keys=KEYS)
        gateways = [await stack.enter_async_context(running(text, folder, store_url)) for folder in folders]
        token = await gateways[0].token()
        await talk(gateways, token, "words")
        before = by_conversation(upstream.requests)
        assert len(before) == CONVERSATIONS, "each is told by a digest of its own"
        assert "conversation" not in "".join(before)
        assert all(len(used) == 1 for used in before.values())
        record = await last_end_record(gateways[0])
        assert record.cached_tokens == 16, "all turns but the last"

        (bad,) = min(before.values(), key=lambda used: KEYS.index(next(iter(used))))
        upstream.refused.add(bad)
        upstream.requests.clear()
        await talk(gateways, token, "words")
        moved = by_conversation([each for each in upstream.requests if bad not in each.headers["Authorization"]])
        assert all(moved[session] == used for session, used in before.items() if used != {bad})
        assert all(len(moved[session]) == 1 for session in before)

        upstream.refused.clear()
        store = gateways[0].store.channels

        async def refused() -> bool:
            (shown,) = await store.show(["one"])
            return any(status.state is CredentialState.REFUSED for _, status in store.credentials_of(shown, KEYS))

        await until(refused)

        async def in_use() -> bool:
            """Let it be tried until no gateway has it aside: the report of one may come after the first time."""
            await store.switch_credential("one", bad, "try")
            await asyncio.sleep(1)  # both have looked
            return not any(gateway.gateway.services.store.channels.credentials.aside for gateway in gateways)

        await until(in_use)
        upstream.requests.clear()
        await talk(gateways, token, "words")
        back = by_conversation(upstream.requests)
        assert back == before


@pytest.mark.parametrize("model", ["plain"])
async def test_without_affinity_credentials_are_used_in_turn_and_nothing_is_told(
    store_url: str, client: Client, tmp_path: Path, model: str
) -> None:
    async with (
        FakeUpstream(pace_s=0) as upstream,
        running(FILE.format(url=upstream.base_url, keys=KEYS), tmp_path, store_url) as gateway,
    ):
        await talk([gateway], await gateway.token(), model)
        assert by_conversation(upstream.requests) == {"": set(KEYS)}
