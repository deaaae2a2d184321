"""On a cluster of three nodes keys of requests, the audit log and management tokens work as on one."""

from __future__ import annotations

import pytest

from gateway.admin.actions.management_tokens import ManagementTokens
from gateway.store.client.client import Client
from tests.admin.actions import test_audit_log
from tests.admin.http import test_idempotency
from tests.store.cluster import client, masters

__all__ = ["client", "masters"]


async def test_all_of_it_works_on_a_cluster(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    await test_idempotency.check(client)
    await test_audit_log.check(client, monkeypatch)
    tokens = ManagementTokens(client)
    made, text = await tokens.create("shop", ["read"], None, "test")
    assert await tokens.authenticate(text) == made
    assert await tokens.all() == [made]
    await tokens.revoke(made.id)
    assert await tokens.authenticate(text) is None
