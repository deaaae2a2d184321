"""The admin port of a running gateway reports what the gateway serves, and the gateway does not need it."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.cli.processes import Served, answers, children, demo_in, free_port, gateway, kill, serving
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="children are looked up in /proc")

ASK = {"model": "demo-words", "stream": True, "messages": [{"role": "user", "content": "hi"}]}


async def ask(served: Served) -> str:
    """Send a request, and return its id once it has ended."""
    url = f"{served.base_url}/chat/completions"
    async with aiohttp.ClientSession(headers=served.headers) as client, client.post(url, json=ASK) as response:
        assert "[DONE]" in await response.text()
        return response.headers["x-request-id"]


@asynccontextmanager
async def following(folder: Path, port: int) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
    """Wait until the admin port serves, and yield the records that it sends from now on."""
    url = f"http://127.0.0.1:{port}/api/v1/usage/live"
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                headers = {"Authorization": f"Bearer {(folder / 'data' / 'admin.token').read_text().strip()}"}
                async with aiohttp.ClientSession(headers=headers) as client, client.get(url) as response:
                    assert response.status == 200
                    assert await response.content.readuntil(b"\n\n") == b": from here on\n\n"
                    yield records(response)
                    return
            except (aiohttp.ClientConnectionError, FileNotFoundError):
                await asyncio.sleep(0.05)


async def records(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    async for line in response.content:
        if line.startswith(b"data: "):
            yield json.loads(line.removeprefix(b"data: "))


async def test_it_streams_what_is_served_and_is_started_again_when_it_dies(tmp_path: Path) -> None:
    port = free_port()
    async with serving(demo_in(tmp_path, admin=f"127.0.0.1:{port}")) as served:
        async with following(tmp_path, port) as live:
            request_id = await ask(served)
            record = await asyncio.wait_for(anext(live), PATIENCE_S)
            assert (record["id"], record["outcome"]) == (request_id, "completed")
        family = list(children(served.pid))
        listening = [pid for pid in family if listens(pid, port)]
        kill(listening[0])
        await ask(served)
        async with following(tmp_path, port) as live:
            request_id = await ask(served)
            async with asyncio.timeout(PATIENCE_S):
                while (await anext(live))["id"] != request_id:
                    continue
        assert await served.stop() == 0


async def test_the_callers_port_has_a_process_of_its_own_which_is_started_again(tmp_path: Path) -> None:
    admin, portal = free_port(), free_port()
    file = demo_in(tmp_path, admin=f"127.0.0.1:{admin}", portal=f"{{listen: '127.0.0.1:{portal}'}}")
    async with serving(file) as served, following(tmp_path, admin) as live:
        await answers(f"http://127.0.0.1:{portal}/healthz")
        family = list(children(served.pid))
        (first,) = [pid for pid in family if listens(pid, portal)]
        assert not listens(first, admin)
        kill(first)
        request_id = await ask(served)
        assert (await asyncio.wait_for(anext(live), PATIENCE_S))["id"] == request_id
        await answers(f"http://127.0.0.1:{portal}/healthz")
        assert await served.stop() == 0


async def test_the_link_that_the_demo_prints_lets_one_person_in(tmp_path: Path) -> None:
    port = free_port()
    async with serving(demo_in(tmp_path, admin=f"127.0.0.1:{port}")) as served:
        async with following(tmp_path, port):
            base, (link,) = f"http://127.0.0.1:{port}", re.findall(r"http://\S+/enter\?ticket=\S+", served.printed)
        form, origin = {"ticket": link.partition("ticket=")[2]}, {"Origin": base}
        async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as client:
            request_id = await ask(served)
            async with client.get(f"{base}/requests") as response:
                assert response.status == 401
            async with client.post(f"{base}/enter", data=form, headers=origin) as response:
                assert (response.status, str(response.url)) == (200, f"{base}/")
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    async with client.get(f"{base}/requests") as response:
                        if f"/requests/{request_id}" in await response.text():
                            break
                    await asyncio.sleep(0.05)
            async with client.get(f"{base}/configuration") as response:
                text = await response.text()
                assert (response.status, "demo-words" in text, served.token in text) == (200, True, False)
        async with (
            aiohttp.ClientSession() as client,
            client.post(f"{base}/enter", data=form, headers=origin) as response,
        ):
            assert response.status == 403


async def test_a_reload_lets_a_proxy_sign_people_on(tmp_path: Path) -> None:
    port = free_port()
    file = demo_in(tmp_path, admin=f"127.0.0.1:{port}")
    address, headers = f"http://127.0.0.1:{port}/accounts", {"X-Forwarded-User": "alice"}
    async with serving(file), following(tmp_path, port), aiohttp.ClientSession(headers=headers) as client:
        async with client.get(address) as response:
            assert response.status == 401
        sso = "admin_sso: {header: X-Forwarded-User, from: [127.0.0.1], scopes: {alice: [read]}}"
        file.write_text(f"{file.read_text()}{sso}\n")
        async with asyncio.timeout(PATIENCE_S):
            while True:
                async with client.get(address) as response:
                    if response.status == 200:
                        break
                await asyncio.sleep(0.05)
        assert "New account" not in await (await client.get(address)).text()


async def test_a_demo_whose_port_is_taken_serves_its_pages_at_a_free_one(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        file = demo_in(tmp_path, admin=address)
        async with serving(file) as served, aiohttp.ClientSession() as client:
            await ask(served)
            (shown,) = re.findall(r"http://\S+/enter\?ticket=\S+", served.printed)
            await answers(f"{shown.partition('/enter')[0]}/healthz")
            _, made, _ = await gateway("admin", "link", "--config", str(file), cwd=tmp_path)
            for link in (shown, made.strip()):
                assert address not in link
                async with client.get(link) as response:
                    assert (response.status, "This link lets you in once" in await response.text()) == (200, True)
            assert f"cannot listen on {address}: another program listens there" in (tmp_path / "serve.log").read_text()
            assert await served.stop() == 0


def listens(pid: int, port: int) -> bool:
    """Return whether a process has the listening socket of a port open."""
    table = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    (inode,) = [line[9] for line in table if line[1].endswith(f":{port:04X}") and line[3] == "0A"]
    targets = [path.readlink() for path in Path(f"/proc/{pid}/fd").iterdir()]
    return Path(f"socket:[{inode}]") in targets
