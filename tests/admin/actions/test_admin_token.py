"""The admin port's token is made once, private, and followed while the port is served."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession
from structlog.testing import capture_logs

from gateway.admin.actions.links import AdminToken, token_of
from gateway.admin.actions.management_tokens import ManagementTokens
from gateway.admin.http.app import Admin, Callers
from gateway.admin.http.port import serving
from gateway.base.errors import Misconfigured
from gateway.config.schema import Config
from gateway.metrics.exporter import Exporter
from gateway.store.client.client import Client
from tests.admin.http.conftest import TOKEN

OTHER = "another-admin-token-of-37-characters"


def test_the_token_is_made_once_and_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GATEWAY_ADMIN_TOKEN", raising=False)
    made = token_of(Config(data=str(tmp_path)))
    assert len(made) >= 32
    assert token_of(Config(data=str(tmp_path))) == made
    assert stat.S_IMODE((tmp_path / "admin.token").stat().st_mode) == 0o600
    monkeypatch.setenv("GATEWAY_ADMIN_TOKEN", TOKEN)
    assert token_of(Config(data=str(tmp_path))) == TOKEN
    monkeypatch.setenv("GATEWAY_ADMIN_TOKEN", "short")
    with pytest.raises(Misconfigured, match="too short"):
        token_of(Config(data=str(tmp_path)))


async def test_the_port_takes_a_changed_token_and_refuses_a_bad_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, client: Client
) -> None:
    monkeypatch.delenv("GATEWAY_ADMIN_TOKEN", raising=False)
    config, file = Config(data=str(tmp_path)), tmp_path / "admin.token"
    file.write_text(f"{TOKEN}\n")
    async with ClientSession() as session:

        async def status(token: str) -> int:
            async with session.get(url, headers={"Authorization": f"Bearer {token}"}) as response:
                return response.status

        with capture_logs() as lines:
            admin = Admin(Callers(AdminToken(config), ManagementTokens(client)), Exporter({}))
            async with serving(admin, "127.0.0.1:0") as port:
                url = f"http://127.0.0.1:{port}/metrics"
                assert (await status(TOKEN), await status(OTHER)) == (200, 401)
                (tmp_path / "next").write_text(OTHER)
                (tmp_path / "next").replace(file)
                assert (await status(TOKEN), await status(OTHER)) == (401, 200)
                file.write_text("short")
                assert (await status("short"), await status(OTHER)) == (401, 200)
                file.unlink()
                assert (await status(OTHER), file.exists()) == (200, False)
    events: list[Any] = [line["event"] for line in lines if line["event"] != "admin_tokens_wrong"]
    assert events == ["admin_token_renewed", "admin_token_refused", "admin_token_refused"]
    assert OTHER not in str(lines)
