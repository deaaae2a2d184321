"""LiteLLM's catalogue is read, exactly, and what is no catalogue is refused in one line."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from gateway.base.errors import Misconfigured
from gateway.tools.prices.catalogues import load

LISTS = Path(__file__).parent / "price_lists"
"""Some models of the catalogue, with the prices of LiteLLM 1.109.1."""
LITELLM = LISTS / "litellm.json"


@pytest.mark.parametrize(
    ("key", "provider", "model"),
    [
        ("gpt-4o", "openai", "gpt-4o"),
        ("azure/eu/gpt-4o", "azure", "eu/gpt-4o"),
        ("gemini-2.5-pro", "vertexai", "gemini-2.5-pro"),
        ("gemini/gemini-2.5-pro", "gemini", "gemini-2.5-pro"),
        (
            "together_ai/meta-llama/Llama-3.3-70B-Instruct-Turbo",
            "togetherai",
            "meta-llama/Llama-3.3-70B-Instruct-Turbo",
        ),
    ],
)
def test_an_entry_knows_its_provider_and_its_name_there(key: str, provider: str, model: str) -> None:
    (entry,) = load(LITELLM).with_key(key)
    assert (entry.key, entry.provider, entry.model) == (key, provider, model)


def test_numbers_are_read_as_they_are_written() -> None:
    (entry,) = load(LITELLM).with_key("novita/moonshotai/kimi-k2.7-code")
    assert entry.raw["input_cost_per_token"] == Decimal("9.499999999999999e-07")


def test_the_description_of_litellms_fields_is_no_model() -> None:
    assert not load(LITELLM).with_key("sample_spec")


@pytest.mark.parametrize(
    ("address", "provider"),
    [
        ("https://api.openai.com/v1", "openai"),
        ("https://eu.api.openai.com/v1", "openai"),
        ("https://acme.openai.azure.com/openai/v1", "azure"),
        ("https://generativelanguage.googleapis.com/v1beta/openai", "gemini"),
        ("https://europe-west4-aiplatform.googleapis.com/v1", "vertexai"),
        ("https://openrouter.ai/api/v1", "openrouter"),
    ],
)
def test_the_provider_of_an_address_is_known(address: str, provider: str) -> None:
    assert provider in load(LITELLM).providers(address)


def test_an_entry_is_found_by_its_key_then_by_its_model_then_by_the_end_of_its_name() -> None:
    prices = load(LITELLM)
    assert [entry.key for entry in prices.named("GPT-4o")] == ["gpt-4o"]
    assert [entry.key for entry in prices.named("kimi-k2.5")] == ["moonshot/kimi-k2.5"]
    assert [entry.key for entry in prices.named("Llama-3.3-70B-Instruct-Turbo")] == [
        "together_ai/meta-llama/Llama-3.3-70B-Instruct-Turbo"
    ]
    assert prices.named("no-such-model") == []


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"[]", "not a catalogue of prices"),
        (b"{}", "not a catalogue of prices"),
        (b'{"gpt-4o": 1}', "not a catalogue of prices"),
        (b'{"a": {}}\n{', ":2: not valid JSON"),
        (b"<html>", ":1: not valid JSON"),
        (b"\xff\xfe", "not UTF-8"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_what_is_no_catalogue_is_refused_with_what_to_give(tmp_path: Path, raw: bytes, text: str) -> None:
    file = tmp_path / "catalogue.json"
    file.write_bytes(raw)
    with pytest.raises(Misconfigured) as refused:
        load(file)
    assert text in str(refused.value)
    assert str(file) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(Misconfigured, match="name a readable file"):
            load(path)


def test_a_mark_of_the_byte_order_is_no_error(tmp_path: Path) -> None:
    file = tmp_path / "catalogue.json"
    file.write_bytes(b"\xef\xbb\xbf" + LITELLM.read_bytes())
    assert load(file).with_key("gpt-4o")
