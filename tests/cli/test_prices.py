"""`gateway prices import` shows what a catalogue would change."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gateway.cli.commands import program
from tests.tools.prices.test_price_list import LITELLM

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


def run(file: Path, *arguments: object, code: int = 0) -> Result:
    command = ["prices", "import", *map(str, arguments), "--config", str(file)]
    result = CliRunner().invoke(program(), command)
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result


def test_the_difference_is_a_table_and_nothing_is_written(file: Path) -> None:
    result = run(file, LITELLM, "--model", "gpt-4o")
    assert [line.split() for line in result.stdout.splitlines()] == [
        ["model", "price", "now", "catalogue", "change", "entry"],
        ["gpt-4o", "input", "2", "2.5", "+25.0%", "gpt-4o"],
        ["gpt-4o", "cached_input", "-", "(2)", "1.25", "-37.5%", "gpt-4o"],
        ["gpt-4o", "cache_write", "-", "(2)", "2.5", "+25.0%", "gpt-4o"],
    ]
    assert file.read_text() == FILE


def test_prices_that_agree_are_counted(file: Path) -> None:
    assert run(file, LITELLM, "--model", "gemini*", "--model", "llama").stdout.startswith("model")
    file.write_text(FILE.replace("{input: 1.25, output: 10,", "{input: 1.25, cached_input: 0.125, output: 10,"))
    file.write_text(file.read_text().replace("input: 2.5, output: 15}", "input: 2.5, cached_input: 0.25, output: 15}"))
    out = run(file, LITELLM, "--model", "gemini*", "--model", "llama").stdout
    assert out == "No price differs: 1 of 2 models are in the catalogue and agree.\n"


def test_models_without_a_price_are_named_and_are_no_failure(file: Path) -> None:
    result = run(file, LITELLM)
    assert result.stderr.splitlines() == [
        "note: llama: it is free in the configuration, and stays so",
        "note: own: the catalogue has no `own`",
        "note: voice: it is billed by units alone, which are not compared: set their prices by the provider's list",
    ]


def test_several_prices_and_impossible_ones_are_named_and_fail(file: Path, tmp_path: Path) -> None:
    catalogue = json.loads(LITELLM.read_text())
    catalogue["azure/gpt-4o"]["input_cost_per_token"] = 3e-6
    catalogue["claude-sonnet-4-5"]["output_cost_per_token"] = "15"
    catalogue["gemini/gemini-2.5-pro"]["cache_read_input_token_cost"] = float("nan")
    changed = tmp_path / "changed.json"
    changed.write_text(json.dumps(catalogue))
    result = run(file, changed, code=1)
    assert result.stdout == "No price differs: 0 of 6 models are in the catalogue and agree.\n"
    assert result.stderr.splitlines()[:3] == [
        "wrong: gpt-4o: several prices: gpt-4o (2.5/10 and more), azure/gpt-4o (3/10 and more)",
        "wrong: gemini-2.5-pro: gemini/gemini-2.5-pro: cache_read_input_token_cost is NaN, not a finite number",
        "wrong: smart: claude-sonnet-4-5: output_cost_per_token is '15', not a number",
    ]
    chosen = run(file, changed, "--model", "gpt-4o", "--as", "gpt-4o=azure/gpt-4o")
    assert chosen.stdout.splitlines()[1].split() == ["gpt-4o", "input", "2", "3", "+50.0%", "azure/gpt-4o"]


def test_the_costs_of_channels(file: Path) -> None:
    result = run(file, LITELLM, "--costs", "--model", "gpt-4o", "--model", "own")
    assert "gpt-4o, channel azure   input" in result.stdout
    assert result.stderr == "note: own, channel local: no provider is known at the address of the channel `local`\n"


def test_json_has_exact_prices_as_text(file: Path) -> None:
    report = json.loads(run(file, LITELLM, "--json", "--model", "smart").stdout)
    assert report["changes"][0] == {
        "model": "smart",
        "channel": "",
        "price": "input",
        "above": 0,
        "now": "1",
        "becomes": "3",
        "entry": "claude-sonnet-4-5",
    }


def test_nothing_of_a_channel_but_its_name_is_shown(file: Path) -> None:
    shown = run(file, LITELLM).output + run(file, LITELLM, "--costs", "--json").output
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
    assert text in " ".join(run(file, *arguments, code=2).stderr.split())
