"""Codex and Claude Code through the whole gateway: a session with a tool, refusals, an upstream that fails, and when they give up.

They are run where they are found: on the path, or in the folder that AGENTS names, such as `node_modules/.bin` after
`npm install @openai/codex @anthropic-ai/claude-code`.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from gateway.testing import Running, running
from tests.patience import PATIENCE_S
from tests.tcp import TcpServer

FOLDER = os.environ.get("AGENTS")
FOUND = {name: shutil.which(name, path=FOLDER) for name in ("codex", "claude")}
CODEX = pytest.mark.skipif(not FOUND["codex"], reason="codex is not installed; AGENTS may name its folder")
CLAUDE = pytest.mark.skipif(not FOUND["claude"], reason="claude is not installed; AGENTS may name its folder")
MOST_S = 8 * PATIENCE_S
FILE = """
channels:
  up: {{base_url: "{url}", operations: [responses, messages, messages.tokens], timers: {{first_byte: 10, idle: 10}}}}
models: {{words: {{input: 1, output: 2, max_output_tokens: 64000, channels: [up]}}}}
groups: {{default: {{budgets: {{day: {budget}}}}}}}
plugins: [use: usage-logger, use: auth, use: rate-limit, use: quota, use: model-routing]
"""
SAID = "The tool has run."
REQUEST = re.compile(rb"(?:GET|POST|HEAD|DELETE) (\S+) HTTP/1\.1\r\n")
STATUS = re.compile(rb"HTTP/1\.1 (\d\d\d) ")
USAGE = {"input_tokens": 100, "output_tokens": 10}


def event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


def response_events(body: dict[str, Any]) -> list[bytes]:
    """Return a call of the tool that runs commands, and a text once its result was sent."""
    base: dict[str, Any] = {
        "id": "resp_1",
        "object": "response",
        "model": "words",
        "status": "in_progress",
        "output": [],
        "usage": None,
    }
    names = [tool.get("name", tool["type"]) for tool in body.get("tools", ())]
    called = any(item.get("type", "").endswith("call_output") for item in body["input"])
    name = next((name for name in ("exec_command", "shell_command", "shell") if name in names), "")
    if called or not name:
        part = {"type": "output_text", "text": SAID, "annotations": []}
        item: dict[str, Any] = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed"}
        item["content"] = [part]
        more = [event("response.output_text.delta", item_id="msg_1", output_index=0, content_index=0, delta=SAID)]
    else:
        command: Any = ["echo", "tool-ran"] if name == "shell" else "echo tool-ran"
        asked = json.dumps({"cmd" if name == "exec_command" else "command": command})
        item = {"id": "fc_1", "type": "function_call", "status": "completed", "call_id": "call_1", "name": name}
        item["arguments"] = asked
        more = []
    added: dict[str, Any] = item | {"status": "in_progress"}
    added |= {"content": list[Any]()} if "content" in item else {"arguments": ""}
    usage = USAGE | {"total_tokens": 110, "input_tokens_details": None, "output_tokens_details": None}
    done = base | {"status": "completed", "output": [item], "usage": usage}
    return [
        event("response.created", response=base),
        event("response.output_item.added", output_index=0, item=added),
        *more,
        event("response.output_item.done", output_index=0, item=item),
        event("response.completed", response=done),
    ]


def message(body: dict[str, Any]) -> dict[str, Any]:
    names = [tool["name"] for tool in body.get("tools", ())]
    parts = [part for each in body["messages"] if isinstance(each["content"], list) for part in each["content"]]
    called = any(part["type"] == "tool_result" for part in parts)
    block: dict[str, Any] = {"type": "text", "text": SAID}
    if "Bash" in names and not called:
        asked = {"command": "echo tool-ran", "description": "says so"}
        block = {"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": asked}
    reason = "tool_use" if "input" in block else "end_turn"
    made = {"id": "msg_1", "type": "message", "role": "assistant", "model": "words", "content": [block]}
    return made | {"stop_reason": reason, "stop_sequence": None, "usage": USAGE}


def message_events(body: dict[str, Any]) -> list[bytes]:
    """Return the same of a message."""
    whole = message(body)
    (block,) = whole["content"]
    if "input" in block:
        begins, delta = block | {"input": {}}, {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
    else:
        begins, delta = block | {"text": ""}, {"type": "text_delta", "text": block["text"]}
    first = whole | {"content": [], "stop_reason": None, "usage": USAGE | {"output_tokens": 1}}
    return [
        event("message_start", message=first),
        event("content_block_start", index=0, content_block=begins),
        event("content_block_delta", index=0, delta=delta),
        event("content_block_stop", index=0),
        event("message_delta", delta={"stop_reason": whole["stop_reason"], "stop_sequence": None}, usage=USAGE),
        event("message_stop"),
    ]


class Recorded:
    """An upstream that answers agents. `fails`: where it fails each answer."""

    def __init__(self, fails: str = "") -> None:
        self.fails = fails
        self.bodies: list[dict[str, Any]] = []
        self.base_url = ""

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if request.path.endswith("count_tokens"):
            return web.json_response({"input_tokens": 100})
        self.bodies.append(body)
        if self.fails == "first":
            return web.json_response({"error": {"message": "down"}}, status=500)
        of_messages = request.path.endswith("/messages")
        if not body.get("stream"):
            return web.json_response(message(body))
        events = message_events(body) if of_messages else response_events(body)
        stream = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await stream.prepare(request)
        for each in events[: {"middle": 2, "end": -1}.get(self.fails)]:
            await stream.write(each)
        if self.fails and request.transport is not None:
            request.transport.abort()
        return stream

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Recorded]:
        app = web.Application(client_max_size=1 << 25)
        app.router.add_post("/v1/{path:.*}", self._answer)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.base_url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        try:
            yield self
        finally:
            await runner.cleanup()


class Counted(TcpServer):
    """A way to the gateway on which requests and statuses are counted."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self.gateway_port = port
        self.paths: list[str] = []
        self.statuses: list[int] = []

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, note: Callable[[bytes], None]
    ) -> None:
        try:
            while data := await reader.read(1 << 16):
                note(data)
                writer.write(data)
                await writer.drain()
            writer.close()
        except OSError:
            writer.transport.abort()

    def _asked(self, data: bytes) -> None:
        self.paths += [path.decode() for path in REQUEST.findall(data)]

    def _told(self, data: bytes) -> None:
        self.statuses += map(int, STATUS.findall(data))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self.gateway_port)
        await asyncio.gather(self._pass(reader, back, self._asked), self._pass(there, writer, self._told))

    def questions(self) -> int:
        """Return how many requests were for an answer."""
        return sum(path.partition("?")[0] in ("/v1/responses", "/v1/messages") for path in self.paths)


async def run(folder: Path, *command: str, **environment: str) -> tuple[int, str]:
    """Return how an agent ended, and what its user saw."""
    home = folder / "home"
    (home / "work").mkdir(parents=True)
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=home / "work",
        env={"PATH": os.environ["PATH"], "HOME": str(home), **environment},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), MOST_S)
    finally:
        if process.returncode is None:
            process.kill()
    return process.returncode or 0, output.decode(errors="replace")


async def codex(folder: Path, port: int, token: str) -> tuple[int, str]:
    home = folder / "codex"
    home.mkdir()
    (home / "config.toml").write_text(
        f'model = "words"\nmodel_provider = "here"\nweb_search = "disabled"\n[model_providers.here]\nname = "here"\n'
        f'base_url = "http://127.0.0.1:{port}/v1"\nenv_key = "HERE_TOKEN"\nwire_api = "responses"\n'
        "request_max_retries = 1\nstream_max_retries = 1\n"
    )
    options = ("exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "say hello")
    return await run(folder, str(FOUND["codex"]), *options, CODEX_HOME=str(home), HERE_TOKEN=token)


async def claude(folder: Path, port: int, token: str) -> tuple[int, str]:
    return await run(
        folder,
        *(str(FOUND["claude"]), "-p", "say hello", "--allowedTools", "Bash", "--model", "words"),
        ANTHROPIC_BASE_URL=f"http://127.0.0.1:{port}",
        ANTHROPIC_API_KEY=token,
        ANTHROPIC_SMALL_FAST_MODEL="words",
        CLAUDE_CONFIG_DIR=str(folder / "claude"),
        CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
        CLAUDE_CODE_MAX_RETRIES="2",
        DISABLE_AUTOUPDATER="1",
    )


@asynccontextmanager
async def served(
    folder: Path, url: str, fails: str = "", budget: str = "1000"
) -> AsyncIterator[tuple[Running, Recorded, Counted]]:
    async with Recorded(fails).serving() as upstream:
        yaml = FILE.format(url=upstream.base_url, budget=budget)
        async with running(yaml, folder, url) as gateway, Counted(gateway.port) as way:
            yield gateway, upstream, way


AGENTS = [pytest.param(codex, marks=CODEX, id="codex"), pytest.param(claude, marks=CLAUDE, id="claude")]
Agent = Callable[[Path, int, str], Any]


@pytest.mark.parametrize("agent", AGENTS)
async def test_a_session_with_a_tool(
    agent: Agent,
    store_url: str,
    tmp_path: Path,
) -> None:
    async with served(tmp_path, store_url) as (gateway, upstream, way):
        code, seen = await agent(tmp_path, way.port, await gateway.token())
        assert (code, SAID in seen) == (0, True), seen
        assert "tool-ran" in json.dumps(upstream.bodies[-1])
        assert {*way.statuses} <= {200, 404}  # Claude Code looks at / first, where nothing is

        assert way.questions() == 2
        async with asyncio.timeout(PATIENCE_S):
            while (account := await gateway.store.accounts.get("tester")) is None or account.holds:
                await asyncio.sleep(0.01)
        assert 5_000_000 - account.balance_micros == 2 * (100 + 2 * 10)
        assert await gateway.store.wallet.verify("tester") == []


MOST = {
    # The most requests, with one repetition allowed to Codex and two to Claude Code; by default they repeat 5 and 10 times.
    "balance": {"codex": 2, "claude": 1},
    "budget": {"codex": 2, "claude": 1},
    "token": {"codex": 2, "claude": 1},
    "first": {"codex": 4, "claude": 3},
    "middle": {"codex": 2, "claude": 4},  # two questions, each repeated once without `stream`
    "end": {"codex": 4, "claude": 2},
}
SENTENCES = {"balance": "balance", "budget": "budget", "token": "token"}


@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize("situation", MOST)
async def test_what_a_refusal_or_a_failure_costs(
    agent: Agent,
    situation: str,
    store_url: str,
    tmp_path: Path,
) -> None:
    fails = situation if situation in ("first", "middle", "end") else ""
    budget = "0.000001" if situation == "budget" else "1000"
    async with served(tmp_path, store_url, fails, budget) as (gateway, upstream, way):
        token = await gateway.token(credit=0 if situation == "balance" else 5_000_000)
        _, seen = await agent(tmp_path, way.port, "sk-nobody-aaaaaaaa-bbbb" if situation == "token" else token)

        assert way.questions() <= MOST[situation][agent.__name__]
        assert fails or SENTENCES[situation] in seen
        assert fails or not upstream.bodies
        assert await gateway.store.wallet.verify("tester") == []
