"""A gateway in front of an upstream that speaks Anthropic's Messages and one that does not, and what clients read from both."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anthropic
import openai
from openai.types.chat import ChatCompletion

from gateway.chat.request import joined_halves
from gateway.testing import Running, running
from plugins.anthropic.answer import FINISH_REASONS
from tests.patience import PATIENCE_S
from tests.plugins.anthropic_streams import PRICE
from tests.whole.conftest import CHAIN
from tests.whole.scripted import CHUNKED, LAST, Scripted, Step, chunk
from tests.whole.test_stream import STREAM

KEY = "sk-ant-canary-4711"
MESSAGES: Any = [{"role": "user", "content": "Hi"}]
LONG: Any = [{"role": "user", "content": "word " * 5000}]
"""As long as what the streams report: no charge is above what the request can cost."""
PLAIN: list[Step] = [CHUNKED + chunk(STREAM) + LAST]


def answered(data: bytes) -> list[Step]:
    """Return a script that answers with a stream."""
    head = CHUNKED.replace(b"\r\n\r\n", b"\r\nrequest-id: req_01\r\n\r\n")
    return [head + chunk(data) + LAST]


def refused(status: int, kind: str, message: str = "No.", more: str = "") -> list[Step]:
    """Return a script that answers with an error."""
    body = json.dumps({"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_01"}).encode()
    head = f"HTTP/1.1 {status} Oops\r\nContent-Type: application/json\r\n{more}Content-Length: {len(body)}\r\n\r\n"
    return [head.encode() + body]


def configuration(claude: str, plain: str, spare: int, more: str = "") -> str:
    """Return YAML with a model that is served by Anthropic first, one the other way round, and one by Anthropic alone.

    `more` is appended to the settings of Anthropic's channels. `spare`: the number of further models of either kind, with
    channels of their own, each of which may fail once.
    """
    both = "{use: %s, priority: 0}, {use: %s, priority: 1}"
    prices = json.dumps(PRICE).strip("{}").replace('"', "")
    channel = f'{{base_url: "{claude}", api_key: {KEY}, dialect: anthropic{more}}}'
    pairs = [(f"alone-{number}", f"alone{number}") for number in range(spare)]
    first = [(f"both-{number}", f"claude{number}") for number in range(spare)]
    channels = "".join(f"  {name}: {channel}\n" for _, name in pairs + first)
    models = "".join(f"  {model}: {{{prices}, channels: [{name}]}}\n" for model, name in pairs)
    models += "".join(f"  {model}: {{{prices}, channels: [{both % (name, 'plain')}]}}\n" for model, name in first)
    return f"""
channels:
{channels}
  claude: {channel}
  plain: {{base_url: "{plain}"}}
models:
{models}
  words: {{{prices}, max_output_tokens: 100, channels: [{{use: claude, model: claude-sonnet-4-5}}]}}
  claude-first: {{{prices}, max_output_tokens: 100, channels: [{both % ("claude", "plain")}]}}
  plain-first: {{{prices}, max_output_tokens: 100, channels: [{both % ("plain", "claude")}]}}
groups: {{default: {{}}}}
port: {{allow_non_streaming: true}}
store: {{timeout: {PATIENCE_S}}}
{CHAIN}
  - use: anthropic
"""


@asynccontextmanager
async def whole(
    folder: Path, url: str, *scripts: list[Step], plain: list[Step] = PLAIN, spare: int = 0, channel: str = ""
) -> AsyncIterator[Any]:
    """Yield a gateway in front of an upstream of either kind, and a token."""
    async with (
        Scripted(*scripts) as claude,
        Scripted(plain) as other,
        running(configuration(claude.base_url, other.base_url, spare, channel), folder, url) as gateway,
    ):
        yield gateway, await gateway.token(credit=50_000_000), claude, other


async def of_openai(client: openai.AsyncOpenAI, **fields: Any) -> ChatCompletion:
    """Return the completion that the official client puts together from the stream."""
    asked = {"model": "words", "messages": LONG, "stream_options": {"include_usage": True}, **fields}
    async with client.chat.completions.stream(**asked) as stream:
        async for _ in stream:
            pass
        return stream.current_completion_snapshot


def client_of(gateway: Running, token: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=gateway.base_url, api_key=token, max_retries=0)


def assert_same(ours: ChatCompletion, theirs: anthropic.types.Message, name: str = "") -> None:
    """Assert that two clients read the same from one stream."""
    assert _read_by_openai(ours) == _read_by_anthropic(theirs), name


def _read_by_openai(ours: ChatCompletion) -> dict[str, Any]:
    (choice,) = ours.choices
    message, usage, calls = choice.message, ours.usage, choice.message.tool_calls or ()
    extra = message.model_extra or {}
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    return {
        "id": ours.id,
        "model": ours.model,
        "finish_reason": choice.finish_reason,
        "text": joined_halves(message.content or ""),
        "calls": [
            (call.id, call.function.name, json.loads(call.function.arguments))
            for call in calls
            if call.type == "function"
        ],
        "thinking": extra.get("reasoning_content", ""),
        "thoughts": [
            {key: value for key, value in each.items() if key != "index"} for each in extra.get("thinking_blocks", [])
        ],
        "prompt": usage.prompt_tokens,
        "cached": usage.prompt_tokens_details.cached_tokens,
        "output": usage.completion_tokens,
    }


def _read_by_anthropic(theirs: anthropic.types.Message) -> dict[str, Any]:
    blocks: list[Any] = list(theirs.content)
    thoughts = [block for block in blocks if block.type in ("thinking", "redacted_thinking")]
    cached, written = theirs.usage.cache_read_input_tokens or 0, theirs.usage.cache_creation_input_tokens or 0
    return {
        "id": theirs.id,
        "model": theirs.model,
        "finish_reason": FINISH_REASONS.get(str(theirs.stop_reason), "stop"),
        "text": joined_halves("".join(block.text for block in blocks if block.type == "text")),
        "calls": [(block.id, block.name, block.input) for block in blocks if block.type == "tool_use"],
        "thinking": "".join(getattr(block, "thinking", "") for block in thoughts),
        "thoughts": [block.to_dict() for block in thoughts],
        "prompt": theirs.usage.input_tokens + cached + written,
        "cached": cached,
        "output": theirs.usage.output_tokens,
    }
