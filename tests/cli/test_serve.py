"""`gateway serve` as a process: what it prints, what it serves, and how it recovers and stops."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path

import aiohttp
import pytest
from typer.testing import CliRunner

from gateway.cli.commands import program
from gateway.config.schema import StoreSettings
from gateway.fake_upstream import MODES
from tests.cli.processes import (
    Served,
    alive,
    children,
    demo_in,
    free_port,
    gateway,
    gone,
    kept_waiting_s,
    kill,
    serving,
    worker_of,
)
from tests.patience import PATIENCE_S

ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="children are looked up in /proc")

ASK = {"model": "demo-words", "stream": True, "messages": [{"role": "user", "content": "Tell me a story"}]}


async def stream(served: Served) -> str:
    url = f"{served.base_url}/chat/completions"
    async with aiohttp.ClientSession(headers=served.headers) as client, client.post(url, json=ASK) as response:
        assert response.status == 200, await response.text()
        return await response.text()


async def balance(file: Path) -> int:
    code, out, err = await gateway("account", "show", "demo", "--json", "--config", str(file), cwd=file.parent)
    assert code == 0, err
    return int(json.loads(out)["balance_micros"])


@ON_LINUX
async def test_the_demo_listens_soon_prints_what_to_paste_and_streams(tmp_path: Path) -> None:
    began = time.monotonic()
    async with serving(demo_in(tmp_path)) as served:
        took_s = time.monotonic() - began
        assert took_s - kept_waiting_s(served.pid) < 5, "the promise is 1.5 s on an idle machine"
        assert f"curl -iN {served.base_url}/chat/completions" in served.printed
        assert f"Authorization: Bearer {served.token}" in served.printed
        shell = served.printed[served.printed.index("curl") : served.printed.index("Then look")]
        curl = await asyncio.create_subprocess_shell(shell, stdout=asyncio.subprocess.PIPE)
        out, _ = await curl.communicate()
        head, _, out = out.partition(b"\r\n\r\n")
        assert b"\r\nx-request-id: " in head
        assert out.startswith(b"data: {")
        assert out.endswith(b"data: [DONE]\n\n")


@ON_LINUX
async def test_sigterm_ends_it_with_0_and_leaves_no_process(tmp_path: Path) -> None:
    async with serving(demo_in(tmp_path, workers=2)) as served:
        family = set(children(served.pid))
        assert len(family) == 5, "the store, the demo's upstream, the sink, two workers"
        assert await served.stop() == 0
        assert not [pid for pid in family if alive(pid)]
    assert "Traceback" not in (tmp_path / "serve.log").read_text()


@ON_LINUX
async def test_repeated_signals_do_not_change_the_exit_code(tmp_path: Path) -> None:
    async with serving(demo_in(tmp_path)) as served:
        stopping = asyncio.create_task(served.stop())
        while not stopping.done():
            with suppress(ProcessLookupError):
                os.kill(served.pid, signal.SIGTERM)
            await asyncio.sleep(0.0005)
        assert await stopping == 0


@ON_LINUX
async def test_the_second_start_keeps_the_balance_and_the_token(tmp_path: Path) -> None:
    file = demo_in(tmp_path)
    async with serving(file) as first:
        assert "[DONE]" in await stream(first)
        assert await first.stop() == 0
    left = await balance(file)
    assert 0 < left < 5_000_000
    async with serving(file) as second:
        assert second.token == first.token
        assert await balance(file) == left, "the command asks the running gateway's store"
        assert "[DONE]" in await stream(second)
        assert await second.stop() == 0
    assert await balance(file) < left


@ON_LINUX
async def test_an_open_stream_is_finished_before_the_end(tmp_path: Path) -> None:
    async with serving(demo_in(tmp_path)) as served:
        url = f"{served.base_url}/chat/completions"
        async with aiohttp.ClientSession(headers=served.headers) as client, client.post(url, json=ASK) as response:
            await response.content.readline()
            ended = asyncio.create_task(served.stop())
            assert (await response.text()).endswith("data: [DONE]\n\n")
        assert await ended == 0


@ON_LINUX
async def test_a_killed_worker_is_replaced(tmp_path: Path) -> None:
    async with serving(demo_in(tmp_path)) as served:
        began = time.monotonic()
        await stream(served)
        stream_s = time.monotonic() - began
        worker = worker_of(served.pid)
        kill(worker)
        began = time.monotonic()
        assert "[DONE]" in await stream(served), "a connection that is opened meanwhile waits, and is served"
        assert worker_of(served.pid) != worker
        took_s = time.monotonic() - began - kept_waiting_s(served.pid)
        assert took_s < 5 * stream_s, "within a second, and a stream's length"
        assert await served.stop() == 0


@ON_LINUX
async def test_a_killed_parent_takes_all_its_processes_with_it(tmp_path: Path) -> None:
    file = demo_in(tmp_path)
    async with serving(file) as served:
        family = set(children(served.pid))
        kill(served.pid)
        await gone(family)
    async with serving(file) as again:
        assert "[DONE]" in await stream(again)


@ON_LINUX
async def test_a_killed_store_is_started_again_with_its_data(tmp_path: Path) -> None:
    async with serving(demo_in(tmp_path)) as served:
        assert "[DONE]" in await stream(served)
        (store,) = [pid for pid, line in children(served.pid).items() if "store.sock" in line]
        kill(store)
        await gone({store})
        url, headers = f"{served.base_url}/models", served.headers
        async with aiohttp.ClientSession(headers=headers) as client, asyncio.timeout(PATIENCE_S):
            while (status := (await client.get(url)).status) != 200:
                assert status == 503, "a store that does not answer is never the caller's fault"
                await asyncio.sleep(0.05)
        assert "[DONE]" in await stream(served)
        assert await served.stop() == 0


async def refusal(file: Path) -> str:
    """Return the message of a start that fails with exit code 2."""
    code, out, err = await gateway("serve", "--config", str(file), cwd=file.parent)
    assert code == 2, out + err
    assert err.startswith("gateway: ")
    assert err.count("\n") == 1, err
    return err.removeprefix("gateway: ").rstrip()


@ON_LINUX
@pytest.mark.parametrize(
    ("of", "cure"), [("port", "stop it or change `listen:`"), ("upstream", "change `demo.upstream`")]
)
async def test_a_taken_port_is_one_line_on_standard_error(tmp_path: Path, of: str, cure: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        message = await refusal(demo_in(tmp_path, **{of: port}))
    assert message == f"cannot listen on 127.0.0.1:{port}: another program listens there; {cure}"


@ON_LINUX
async def test_a_data_folder_that_cannot_be_made_is_one_line_on_standard_error(tmp_path: Path) -> None:
    (tmp_path / "data").touch()
    message = await refusal(demo_in(tmp_path))
    assert message == f"data: {tmp_path}/data is a file, not a folder: move it away, or change `data:`"


@ON_LINUX
async def test_a_second_gateway_with_the_data_folder_is_refused_at_once(tmp_path: Path) -> None:
    file = demo_in(tmp_path)
    async with serving(file) as served:
        code, out, err = await gateway("serve", "--config", str(file), cwd=tmp_path)
        assert (code, out) == (1, ""), err
        assert f"data: this very gateway already runs (pid {served.pid}, since 20" in err
        assert err.count("\n") == 1, "nothing was waited for"
        assert "[DONE]" in await stream(served)


@ON_LINUX
async def test_a_store_that_cannot_be_reached_is_reported_within_the_configured_time(tmp_path: Path) -> None:
    file = demo_in(tmp_path)
    file.write_text(
        file.read_text().replace("store: {", "store: {connect_for: 0.5, ")
        + f"redis: redis://:sesame-0815@127.0.0.1:{free_port()}\n"
    )
    began = time.monotonic()
    code, _, err = await gateway("serve", "--config", str(file), cwd=tmp_path)
    took_s = time.monotonic() - began
    (tmp_path / "data").rename(tmp_path / "aside")
    (tmp_path / "data").touch()
    await refusal(file)
    refused_at_once_s = time.monotonic() - began - took_s
    assert (code, took_s - refused_at_once_s < StoreSettings().connect_for) == (1, True), "sooner than by default"
    message = "gateway: the store did not answer within 0.5 s: is it running, and is `redis:` right?"
    assert err.splitlines()[-1] == message
    assert "Traceback" not in err
    assert "sesame" not in err


def test_the_modes_are_listed_with_what_they_do() -> None:
    result = CliRunner().invoke(program(), ["fake-upstream", "--modes"])
    assert result.exit_code == 0
    listed = dict(line.split(maxsplit=1) for line in result.stdout.splitlines())
    listed.pop("mode")
    assert {mode: " ".join(text.split()) for mode, text in listed.items()} == dict(MODES)


def test_an_unknown_mode_is_refused_with_where_to_look() -> None:
    result = CliRunner().invoke(program(), ["fake-upstream", "--mode", "wrods"])
    assert result.exit_code == 2
    assert "there is no mode `wrods`" in result.stderr
    assert "--modes" in result.stderr


async def test_a_taken_port_is_one_line(tmp_path: Path) -> None:
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    code, _, err = await gateway("fake-upstream", "--port", str(port), cwd=tmp_path)
    server.close()
    assert (code, err) == (
        2,
        f"gateway: cannot listen on 127.0.0.1:{port}: another program listens there; change --port\n",
    )


async def test_it_answers_by_its_mode_until_it_is_interrupted(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway", "fake-upstream", "--port", "0", "--mode", "429"),
        cwd=tmp_path,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        mode, base_url = (await asyncio.wait_for(process.stdout.readline(), PATIENCE_S)).decode().split()
        assert mode == "429:"
        ask = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}
        async with aiohttp.ClientSession() as client, client.post(f"{base_url}/chat/completions", json=ask) as answer:
            assert answer.status == 429
        process.send_signal(signal.SIGINT)
        assert await asyncio.wait_for(process.wait(), PATIENCE_S) == 0
    finally:
        if process.returncode is None:
            process.kill()
