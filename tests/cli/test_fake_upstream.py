"""`gateway fake-upstream` runs an upstream from the command line."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import aiohttp
from typer.testing import CliRunner

from gateway.cli.commands import program
from gateway.fake_upstream import MODES
from tests.cli.processes import gateway
from tests.patience import PATIENCE_S


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
