"""What the operator learns of a refusal: the model that was asked for, why each channel could not be called, which key is bad."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

from gateway import Outcome
from gateway.admin.actions.requests import in_words
from gateway.store.channels import ChannelLimits, ChannelReport, CredentialState, fingerprint_of
from gateway.store.client.client import Client
from gateway.testing import Running, running
from plugins.model_routing import ModelRouting
from tests.patience import PATIENCE_S
from tests.whole.aftermath import last_end_record
from tests.whole.raw import ask, chat, get
from tests.whole.scripted import Scripted
from tests.whole.test_channels import GOOD, REFUSED, yaml

KEYS = ["canary-key-zero", "canary-key-one"]
CHANNELS = """
channels:
  east: {base_url: "http://127.0.0.1:1/v1"}
  west: {base_url: "http://127.0.0.1:1/v1"}
  full: {base_url: "http://127.0.0.1:1/v1", concurrent: 1}
  keyless: {base_url: "http://127.0.0.1:1/v1", api_keys: [canary-key-zero, canary-key-one]}
  distant: {base_url: "http://127.0.0.1:1/v1"}
models: {words: {input: 1, output: 2, max_output_tokens: 100, channels: [east, west, full, keyless, distant]}}
groups: {default: {channels: [east, west, full, keyless]}}
plugins: [{use: usage-logger}, {use: auth}, {use: quota}, {use: model-routing}]
"""


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not await condition():
            await asyncio.sleep(0.01)


async def test_a_503_keeps_why_each_channel_could_not_be_called_and_its_caller_does_not_see_it(
    store_url: str, client: Client, tmp_path: Path
) -> None:
    async with running(f"{CHANNELS}store: {{timeout: {PATIENCE_S}}}\n", tmp_path, store_url) as gateway:
        token, channels = await gateway.token(), gateway.store.channels
        await channels.set_enabled("east", False)
        for key in KEYS:
            await channels.switch_credential("keyless", key, "off")
        failing = ChannelReport(failed=3, cool_ms=60_000, error="upstream_auth_failed")
        await channels.sync("another", {"west": failing})
        await channels.admit("another", [ChannelLimits("full", 1, 0, 600_000, 1000)])
        routing = gateway.gateway.chain.entries[-1].plugin
        assert isinstance(routing, ModelRouting)
        await routing.health.sync()
        refused = await ask(gateway.port, chat(token))
        record = await last_end_record(gateway)
        await routing.health.sync()
    assert (refused.status, refused.error["code"], record.outcome) == (
        503,
        "model_unavailable",
        Outcome.UPSTREAM_FAILED,
    )
    words = in_words(record)
    assert "channel east was not asked: disabled" in words
    assert "channel west was not asked: cooling until 20" in words
    assert record.unavailable.pop("west").endswith("Z after upstream_auth_failed")
    assert record.unavailable == {
        "east": "disabled",
        "full": "full",
        "keyless": "no credential: each is spent or switched off",
        "distant": "not open to the group",
    }
    assert not any(name in refused.body.decode() for name in (*record.unavailable, "west"))


async def test_the_caller_reads_which_model_it_asked_for_and_no_channels(gateway: Running) -> None:
    token = await gateway.token()
    refused = await ask(gateway.port, chat(token, {"model": "wrods"}))
    pasted = await ask(gateway.port, chat(token, {"model": token}))
    assert (refused.status, pasted.status) == (404, 404)
    assert token not in pasted.body.decode()
    await last_end_record(gateway)
    for answer, requested in ((refused, "wrods"), (pasted, "hidden: ")):
        fields: dict[str, str] = {}

        async def found(answer: object = answer, fields: dict[str, str] = fields) -> bool:
            got = await ask(gateway.port, get(f"/v1/requests/{answer.headers['x-request-id']}", token))  # type: ignore[attr-defined]
            if got.status == 200:
                fields |= json.loads(got.body)
            return got.status == 200

        await until(found)
        assert requested in fields["requested_model"]
        assert fields["model"] == ""
        assert "unavailable" not in fields


async def test_a_credential_that_one_gateway_found_refused_is_set_aside_by_the_other_until_it_is_tried(
    store_url: str, client: Client, tmp_path: Path
) -> None:
    folders = [tmp_path / "one", tmp_path / "two"]
    async with AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(Scripted([REFUSED], GOOD))
        text = yaml(upstream.base_url, each=f", api_keys: {KEYS}")
        one, two = [await stack.enter_async_context(running(text, folder, store_url)) for folder in pepper_in(folders)]
        token, channels = await one.token(), two.gateway.services.store.channels
        assert (await ask(one.port, chat(token))).status == 200
        bad, good = map(fingerprint_of, KEYS)
        assert one.gateway.services.store.channels.credentials.until("c0", bad) > 0, (
            "the worker that met it knows at once"
        )

        async def aside() -> bool:
            return channels.credentials.until("c0", bad) > 0

        async def in_use() -> bool:
            return not await aside()

        await until(aside)
        answers = [await ask(two.port, chat(token)) for _ in range(4)]
        assert [answer.status for answer in answers] == [200] * 4
        used = [request.split(b"Bearer ")[1].split(b"\r\n")[0].decode() for request in upstream.requests]
        assert used == [KEYS[0]] + [KEYS[1]] * 5, "the other gateway does not meet it, too"
        (shown,) = await channels.show(["c0"])
        (_, first), (_, second) = channels.credentials_of(shown, KEYS)
        assert (first.state, first.reason, second.state) == (CredentialState.REFUSED, "401", CredentialState.IN_USE)
        assert (first.until_ms or 0) - (first.since_ms or 0) == 600_000
        assert channels.credentials_of(shown, ["another key", KEYS[1]])[0][1].state is CredentialState.IN_USE
        await channels.switch_credential("c0", KEYS[0], "try")
        await until(in_use)
        for _ in range(2):
            assert (await ask(two.port, chat(token))).status == 200
        assert KEYS[0].encode() in b"".join(upstream.requests[6:])
        await channels.switch_credential("c0", KEYS[1], "off")

        async def off() -> bool:
            return one.gateway.services.store.channels.credentials.until("c0", good) == float("inf")

        await until(off)
        before = len(upstream.requests)
        for _ in range(3):
            assert (await ask(one.port, chat(token))).status == 200
        assert all(KEYS[0].encode() in request for request in upstream.requests[before:])
        fields = await client.call("HGETALL", "gw:{channels}:c0:state")
        assert b"canary" not in b"".join([*fields, *fields.values()])


def pepper_in(folders: list[Path]) -> list[Path]:
    """Make the folders, with the same pepper in each."""
    for folder in folders:
        (folder / "data").mkdir(parents=True)
        (folder / "data/pepper").write_bytes(b"0123456789abcdef0123456789abcdef")
    return folders
