"""The key of an upstream is rotated by its file: the next request has the new one, and an open stream goes on with the old."""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp

from tests.cli.processes import Served, demo_in, gateway, serving
from tests.patience import PATIENCE_S, wait_until
from tests.whole.scripted import Gated
from tests.whole.test_stream import DONE, USAGE, WORDS

OLD, NEW = "sk-old-key-of-the-upstream", "sk-new-key-of-the-upstream"
BODY = {"model": "demo-words", "stream": True, "messages": [{"role": "user", "content": "hi"}]}


def mounted(folder: Path, secret: str) -> None:
    """Write a secret as Kubernetes mounts one: a link to a link to a folder, which is exchanged at once."""
    version = folder / f"..{time.time_ns()}"
    version.mkdir()
    (version / "key").write_text(f"{secret}\n")
    (folder / "..new").symlink_to(version.name)
    (folder / "..new").replace(folder / "..data")
    if not (folder / "key").exists():
        (folder / "key").symlink_to("..data/key")


def lines(folder: Path, event: str) -> list[dict[str, Any]]:
    written = [json.loads(line) for line in (folder / "serve.log").read_text().splitlines() if line.startswith("{")]
    return [line for line in written if line["event"] == event]


async def key_of_next(served: Served, upstream: Gated) -> str:
    async with (
        aiohttp.ClientSession(headers=served.headers) as session,
        session.post(f"{served.base_url}/chat/completions", json=BODY) as answer,
    ):
        assert (answer.status, (await answer.read())[-14:]) == (200, DONE)
    found = re.search(rb"Bearer (\S+)", upstream.requests[-1])
    assert found is not None
    return found[1].decode()


async def test_a_key_is_rotated_without_a_restart(tmp_path: Path) -> None:
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    mounted(secrets, OLD)
    file = demo_in(tmp_path, workers=2)
    begin, rest = b"".join(WORDS[:3]), b"".join(WORDS[3:]) + USAGE + DONE
    async with Gated(begin, rest) as upstream:
        text = re.sub(r"demo: \{base_url: \S+\}", f"demo: {{base_url: '{upstream.base_url}', KEY}}", file.read_text())
        file.write_text(text.replace("KEY", "api_key: '${file:secrets/key}'"))
        async with serving(file) as served, aiohttp.ClientSession(headers=served.headers) as session:
            async with session.post(f"{served.base_url}/chat/completions", json=BODY) as stream:
                await stream.content.readuntil(b"\n\n")
                mounted(secrets, NEW)
                await wait_until(lambda: len(lines(tmp_path, "reloaded")) == 2)
                assert [await key_of_next(served, upstream) for _ in range(4)] == 4 * [NEW]
                await refused_files(tmp_path, secrets / "key")
                assert await key_of_next(served, upstream) == NEW
                upstream.gate.set()
                assert (await asyncio.wait_for(stream.read(), PATIENCE_S)).endswith(rest.replace(USAGE, b""))
            assert OLD.encode() in upstream.requests[0]
            (secrets / "key").unlink()
            mounted(secrets, OLD)
            await wait_until(lambda: len(lines(tmp_path, "reloaded")) == 4)
            assert await key_of_next(served, upstream) == OLD
            # Not after the end: the store is there for a moment longer, and is lost then.
            code, out, err = await gateway("check", "--config", str(file), cwd=tmp_path)
            assert (code, out.splitlines()[-1:], OLD in out + err) == (0, ["good"], False), err
        log = (tmp_path / "serve.log").read_text() + served.printed
        assert OLD not in log and NEW not in log


async def refused_files(folder: Path, key: Path) -> None:
    """Put wrong files in place of a key, one after another: each is one line in the log, and nothing else happens."""
    wrong: list[tuple[Callable[[], object], str]] = [
        (key.unlink, "is missing"),
        (key.touch, "is empty"),
        (lambda: key.write_text(f"{NEW} {NEW}"), "api_key must be visible ASCII"),
        (lambda: key.write_bytes(os.urandom(40) + b"\xff"), "is not text in UTF-8"),
    ]
    for count, (change, reason) in enumerate(wrong, 1):
        change()
        await wait_until(lambda count=count: len(lines(folder, "reload_refused")) == count)  # type: ignore[misc]
        assert reason in lines(folder, "reload_refused")[-1]["reason"]
    assert len(lines(folder, "reloaded")) == 2
