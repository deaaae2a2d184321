"""`gateway models import` prints what an upstream serves as YAML that the file takes, once it has prices."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml
from aiohttp import web
from typer.testing import CliRunner

from gateway.base.errors import GatewayError
from gateway.cli.commands import program
from gateway.config.schema import load

KEY = "canary-key-0123456789"
LIST: dict[str, Any] = {
    "object": "list",
    "data": [
        {"id": "org/llama-3.1:8b", "max_model_len": 8192},
        {"id": "known", "context_length": 100},
        {"id": "yes", "meta": {"n_ctx_train": 4096}},
        {"id": "plain", "max_model_len": "many"},
        {"id": "a\nb"},
        {"no": "id"},
        7,
    ],
}


@pytest.fixture
def upstream() -> Iterator[tuple[str, dict[str, Any]]]:
    """The address of an upstream in a thread of its own, and what it answers with."""
    answer: dict[str, Any] = {"status": 200, "json": LIST}

    async def give(request: web.Request) -> web.Response:
        answer["sent"] = request.headers.get("Authorization")
        return web.json_response(answer["json"], status=answer["status"])

    loop = asyncio.new_event_loop()

    async def start() -> tuple[web.AppRunner, int]:
        app = web.Application()
        app.router.add_get("/v1/models", give)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return runner, runner.addresses[0][1]

    runner, port = loop.run_until_complete(start())
    thread = Thread(target=loop.run_forever)
    thread.start()
    yield f"http://127.0.0.1:{port}/v1", answer
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.run_until_complete(runner.cleanup())
    loop.close()


def file_at(folder: Path, url: str, more: str = "") -> Path:
    file = folder / "gateway.yaml"
    file.write_text(
        f"channels: {{local: {{base_url: {url}, api_key: {KEY}}}}}\n"
        f"groups: {{default: {{}}}}\nmodels:\n  mine: {{free: true, channels: [{{use: local, model: known}}]}}\n{more}"
    )
    return file


def run(file: Path, *arguments: str) -> Any:
    return CliRunner().invoke(program(), ["models", "import", *arguments, "--config", str(file)])


def test_what_is_printed_completes_the_file(tmp_path: Path, upstream: tuple[str, dict[str, Any]]) -> None:
    url, answer = upstream
    file = file_at(tmp_path, url)
    result = run(file, "local", "--free")
    assert result.exit_code == 0, result.output
    assert answer["sent"] == f"Bearer {KEY}"
    models = load(file_at(tmp_path, url, result.stdout)).config.models
    assert {name: model.context_length for name, model in models.items()} == {
        "mine": None,
        "org/llama-3.1:8b": 8192,
        "yes": 4096,
        "plain": None,
    }
    assert all(model.free for model in models.values())


def test_where_nothing_is_new_that_is_said(tmp_path: Path, upstream: tuple[str, dict[str, Any]]) -> None:
    url, answer = upstream
    answer["json"] = {"data": [{"id": "known"}]}
    assert run(file_at(tmp_path, url), "local").stdout == "# local serves nothing that the file does not have\n"


def test_without_prices_the_file_is_refused(tmp_path: Path, upstream: tuple[str, dict[str, Any]]) -> None:
    url, _ = upstream
    result = run(file_at(tmp_path, url), "local")
    assert yaml.safe_load(result.stdout)["plain"] == {"input": "PRICE", "output": "PRICE", "channels": ["local"]}
    with pytest.raises(GatewayError, match="must be a number"):
        load(file_at(tmp_path, url, result.stdout))


@pytest.mark.parametrize(
    ("status", "value", "text"),
    [
        (401, {"error": {"message": f"{KEY} is wrong"}}, "the upstream answered with 401: [redacted] is wrong"),
        (200, {"data": "none"}, "the upstream answered with 200: no list of models"),
        (404, [], "the upstream answered with 404: no list of models"),
    ],
)
def test_an_upstream_without_a_list_is_an_error(
    tmp_path: Path, upstream: tuple[str, dict[str, Any]], status: int, value: Any, text: str
) -> None:
    url, answer = upstream
    answer |= {"status": status, "json": value}
    result = run(file_at(tmp_path, url), "local")
    assert (result.exit_code, result.stdout) == (1, "")
    assert text in result.stderr
    assert KEY not in result.output


def test_a_channel_that_is_not_there_or_not_reached_is_an_error(tmp_path: Path) -> None:
    file = file_at(tmp_path, "http://127.0.0.1:1/v1")
    assert "there is no channel other" in run(file, "other").stderr
    assert "the upstream cannot be reached" in run(file, "local").stderr
