"""`gateway models import` prints what an upstream serves as YAML that the file takes, once it has prices."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml
from aiohttp import web
from typer.testing import CliRunner, Result

from gateway.base.errors import GatewayError
from gateway.cli.commands import program
from gateway.config.schema import load
from tests.tools.test_prices import LITELLM

KEY = "canary-key-0123456789"
LIST: dict[str, Any] = {
    "object": "list",
    "data": [
        *({"id": "org/llama-3.1:8b", "max_model_len": 8192}, {"id": "known", "context_length": 100}),
        *({"id": "yes", "meta": {"n_ctx_train": 4096}}, {"id": "plain", "max_model_len": "many"}, {"id": "a\nb"}),
        *({"no": "id"}, 7),
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


FILE = """
channels:
  openai: {base_url: https://api.openai.com/v1, api_key: secret-of-the-channel}
  azure: {base_url: https://acme.openai.azure.com/openai/v1}
  gemini: {base_url: https://generativelanguage.googleapis.com/v1beta/openai}
  anthropic: {base_url: https://api.anthropic.com/v1}
  local: {base_url: http://127.0.0.1:8000/v1}
models:
  gpt-4o: {input: 2.00, output: 10.00, channels: [openai, {use: azure, weight: 2}]}
  gemini-2.5-pro: {input: 1.25, output: 10, tiers: [{above: 200000, input: 2.5, output: 15}], channels: [gemini]}
  smart: {input: 1, output: 10, channels: [{use: anthropic, model: claude-sonnet-4-5}]}
  llama: {free: true, channels: [local]}
  own: {input: 1, output: 1, channels: [local]}
  voice: {character: 15, channels: [local]}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "gateway.yaml"
    path.write_text(FILE)
    return path


def priced(file: Path, *arguments: object, code: int = 0) -> Result:
    command = ["prices", "import", *map(str, arguments), "--config", str(file)]
    result = CliRunner().invoke(program(), command)
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result


def test_the_difference_is_a_table_and_nothing_is_written(file: Path) -> None:
    result = priced(file, LITELLM, "--model", "gpt-4o")
    assert [line.split() for line in result.stdout.splitlines()] == [
        ["model", "price", "now", "catalogue", "change", "entry"],
        ["gpt-4o", "input", "2", "2.5", "+25.0%", "gpt-4o"],
        ["gpt-4o", "cached_input", "2", "1.25", "-37.5%", "gpt-4o"],
    ]
    assert file.read_text() == FILE


def test_prices_that_agree_are_counted(file: Path) -> None:
    file.write_text(FILE.replace("gpt-4o: {input: 2.00,", "gpt-4o: {input: 2.5, cached_input: 1.25,"))
    out = priced(file, LITELLM, "--model", "gpt-4o", "--model", "llama").stdout
    assert out == "No price differs: 1 of 2 models are in the catalogue and agree.\n"


def test_models_without_a_price_are_named_and_are_no_failure(file: Path) -> None:
    result = priced(file, LITELLM)
    assert [line for line in result.stderr.splitlines() if "size of the prompt" not in line] == [
        "note: llama: it is free in the configuration, and stays so",
        "note: own: the catalogue has no `own`",
        "note: voice: it is billed by units alone, which are not compared: set their prices by the provider's list",
    ]


def test_several_prices_and_impossible_ones_are_named_and_fail(file: Path, tmp_path: Path) -> None:
    catalogue = json.loads(LITELLM.read_text())
    del catalogue["gpt-4o"]
    catalogue["claude-sonnet-4-5"]["output_cost_per_token"] = "15"
    changed = tmp_path / "changed.json"
    changed.write_text(json.dumps(catalogue))
    result = priced(file, changed, "--model", "gpt-4o", "--model", "smart", code=1)
    assert result.stdout == "No price differs: 0 of 2 models are in the catalogue and agree.\n"
    assert result.stderr.splitlines() == [
        "wrong: gpt-4o: several prices: azure/gpt-4o (2.5/10), azure/eu/gpt-4o (2.75/11); choose one with --as",
        "wrong: smart: claude-sonnet-4-5: output_cost_per_token is 15, not a number",
    ]
    chosen = priced(file, changed, "--model", "gpt-4o", "--as", "gpt-4o=azure/eu/gpt-4o")
    assert chosen.stdout.splitlines()[1].split() == ["gpt-4o", "input", "2", "2.75", "+37.5%", "azure/eu/gpt-4o"]


def test_the_costs_of_channels(file: Path) -> None:
    result = priced(file, LITELLM, "--costs", "--model", "gpt-4o", "--model", "own")
    assert "gpt-4o, channel azure   input" in result.stdout
    assert result.stderr == "note: own, channel local: the catalogue has no `own`\n"


def test_json_has_exact_prices_as_text(file: Path) -> None:
    report = json.loads(priced(file, LITELLM, "--json", "--model", "smart").stdout)
    assert report["changes"][0] == {
        "model": "smart",
        "channel": "",
        "price": "input",
        "now": "1",
        "becomes": "3",
        "entry": "claude-sonnet-4-5",
    }


def test_nothing_of_a_channel_but_its_name_is_shown(file: Path) -> None:
    shown = priced(file, LITELLM).output + priced(file, LITELLM, "--costs", "--json").output
    assert "secret-of-the-channel" not in shown
    assert "api.openai.com" not in shown


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["none.json"], "none.json: No such file or directory; name a readable file"),
        ([str(LITELLM), "--model", "gpt-5"], "the configuration has no model `gpt-5`; known: gpt-4o, gemini-2.5-pro"),
        ([str(LITELLM), "--as", "gpt-5=gpt-4o"], "the configuration has no model `gpt-5`"),
        ([str(LITELLM), "--as", "gpt-4o=none"], "the catalogue has no `none`"),
        ([str(LITELLM), "--as", "gpt-4o"], "is not MODEL=KEY"),
        ([__file__], "not valid JSON"),
    ],
)
def test_a_mistake_is_one_clear_line(file: Path, arguments: list[str], text: str) -> None:
    assert text in " ".join(priced(file, *arguments, code=2).stderr.split())
