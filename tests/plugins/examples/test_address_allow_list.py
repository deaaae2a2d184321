"""Only callers from the listed networks are accepted; the others are refused before token and body are read."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway import Refused, Services
from gateway.testing import exchange, services, started
from plugins.examples.address_allow_list import AddressAllowList

NETWORKS = ["192.0.2.0/24", "198.51.100.7", "2001:db8::/32"]


@pytest.fixture
async def given(store_url: str, tmp_path: Path) -> AsyncIterator[Services]:
    async with services(tmp_path, store_url) as given:
        yield given


@pytest.fixture
async def allow_list(given: Services) -> AddressAllowList:
    return await started(AddressAllowList(networks=NETWORKS), given)


@pytest.mark.parametrize("peer", ["192.0.2.1", "198.51.100.7", "2001:db8::1", "::ffff:192.0.2.1"])
async def test_a_caller_from_a_listed_network_passes(allow_list: AddressAllowList, peer: str) -> None:
    await allow_list.on_request(exchange(peer=peer))


@pytest.mark.parametrize("peer", ["192.0.3.1", "198.51.100.8", "2001:db9::1", "::ffff:192.0.3.1", "", "elsewhere"])
async def test_any_other_caller_is_refused_with_the_body_unread(allow_list: AddressAllowList, peer: str) -> None:
    with pytest.raises(Refused, match="not open to your address") as refused:
        await allow_list.on_request(exchange(b"no json at all", peer=peer))
    assert (refused.value.status, refused.value.code) == (403, "address_forbidden")


@pytest.mark.parametrize("network", ["192.0.2.1/24", "office"])
async def test_an_invalid_network_stops_the_start(given: Services, network: str) -> None:
    with pytest.raises(ValueError, match=network.partition("/")[0]):
        await started(AddressAllowList(networks=[network]), given)
