"""Channels are shown with their conditions and credentials, switched for all gateways, and tried with a real request."""

from __future__ import annotations

import msgspec
import pytest

from gateway.admin.actions import channels
from gateway.admin.actions.channels import ChannelTest, DisablingReason, Switch
from gateway.admin.actions.local import LocalClient
from gateway.base.errors import GatewayError
from gateway.store.channels import ChannelReport, Condition, fingerprint_of


async def refused(work: object) -> tuple[str, str]:
    with pytest.raises(GatewayError) as caught:
        await work  # type: ignore[misc]
    return caught.value.kind, str(caught.value)


async def test_a_channel_is_shown_with_its_condition_and_its_credentials_by_number(local_client: LocalClient) -> None:
    report = ChannelReport(
        failed=3,
        error="upstream_timeout",
        in_flight=2,
        cool_ms=60_000,
        credentials={fingerprint_of("canary-4712"): "key is wrong"},
    )
    await local_client.store.channels.sync("w", {"one": report})
    one, two = (await channels.list_(local_client)).data
    assert (one.channel, one.condition, one.in_flight, one.last_error) == ("one", "cooling", 2, "upstream_timeout")
    assert [(each.index, each.state, each.reason) for each in one.credentials] == [
        (0, "in use", ""),
        (1, "refused", "key is wrong"),
    ]
    assert (two.condition, two.credentials) == (Condition.HEALTHY, [])
    assert await channels.read(local_client, "two") == two
    assert b"canary" not in msgspec.json.encode([one, two])


async def test_a_channel_is_disabled_with_who_and_why_and_enabled(local_client: LocalClient) -> None:
    disabled = await channels.disable(local_client, "one", body=DisablingReason("invoice unpaid"))
    assert disabled == await channels.read(local_client, "one")
    assert disabled.condition is Condition.DISABLED
    assert disabled.disabling is not None
    assert (disabled.disabling.by, disabled.disabling.reason) == ("test", "invoice unpaid")
    assert (await channels.enable(local_client, "one")).condition is Condition.HEALTHY
    for work in (
        channels.read(local_client, "none"),
        channels.disable(local_client, "none", body=DisablingReason()),
        channels.enable(local_client, "none"),
    ):
        assert await refused(work) == ("not_found", "there is no channel none; the configuration has: one, two")


async def test_a_credential_is_switched_by_its_number(local_client: LocalClient) -> None:
    off = await channels.credential(local_client, "one", "1", body=Switch("off"))
    assert [each.state for each in off.credentials] == ["in use", "off"]
    assert (await refused(channels.credential(local_client, "one", "1", body=Switch("try"))))[0] == "refused"
    on = await channels.credential(local_client, "one", "1", body=Switch("on"))
    assert [each.state for each in on.credentials] == ["in use", "in use"]
    for number in ("2", "-1", "x", "1" * 5000, "²"):
        assert await refused(channels.credential(local_client, "one", number, body=Switch("on"))) == (
            "refused",
            "one has 2 credentials, counted from 0",
        )
    assert "two has no credentials" in await refused(channels.credential(local_client, "two", "0", body=Switch("on")))


async def test_a_channel_whose_upstream_is_away_is_tried_and_fails(local_client: LocalClient) -> None:
    tried = await channels.test(local_client, "one", body=ChannelTest())
    assert (tried.channel, tried.model, tried.good, tried.status) == ("one", "mini", False, None)
    assert tried.text.startswith("it cannot be reached")
    assert "canary" not in tried.text
    assert (await refused(channels.test(local_client, "one", body=ChannelTest(credential=2))))[0] == "refused"
    assert (await refused(channels.test(local_client, "one", body=ChannelTest(model="other"))))[0] == "not_found"
    assert (await refused(channels.test(local_client, "two", body=ChannelTest())))[0] == "not_found"
