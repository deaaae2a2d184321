"""What is printed as YAML is read by the gateway as what it was."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from gateway.config.schema import Model, Serving, load
from gateway.tools.prices.match import models_yaml
from tests.tools.prices.test_price_entry import cost, tier

WHOLE = Model(
    [
        "a",
        Serving("b", "x/y:1", 3, 1),
        Serving("b", cost=cost("0.1", "0.2", "0.05", "0.15", request="0.001", tiers=(tier(5, "1", "2", "3", "4"),))),
    ],
    Decimal("2.50"),
    Decimal("10.000000"),
    max_output_tokens=16384,
    cached_input=Decimal("1.25E+0"),
    cache_write=Decimal("0.000001"),
    request=Decimal("1E-3"),
    tiers=(tier(128_000, "999999.999999", "1E+5"),),
)
NAMES = (
    "gpt-4o",
    "on",
    "1_000",
    "0x10",
    "1e5",
    "2026-01-01",
    "a: b",
    "#",
    "ü",
    "null",
    "~",
    '"',
    "meta/llama:free",
    "1.5",
)


@pytest.mark.parametrize("name", NAMES)
def test_an_entry_is_read_as_it_was(tmp_path: Path, name: str) -> None:
    models = {name: WHOLE, "free": Model(["a"], free=True)}
    file = tmp_path / "gateway.yaml"
    file.write_text("channels: {a: {base_url: 'http://h/v1'}, b: {base_url: 'http://h/v1'}}\n" + models_yaml(models))
    assert load(file, {}).config.models == models


def test_prices_have_no_exponents_and_no_needless_zeros() -> None:
    assert models_yaml({"gpt-4o": WHOLE}) == (
        "models:\n"
        "  gpt-4o:\n"
        "    input: 2.5\n"
        "    cached_input: 1.25\n"
        "    cache_write: 0.000001\n"
        "    output: 10\n"
        "    request: 0.001\n"
        "    tiers:\n"
        "      - {above: 128000, input: 999999.999999, output: 100000}\n"
        "    max_output_tokens: 16384\n"
        "    channels:\n"
        "      - a\n"
        '      - {use: b, model: "x/y:1", weight: 3, priority: 1}\n'
        "      - use: b\n"
        "        cost:\n"
        "          input: 0.1\n"
        "          cached_input: 0.05\n"
        "          cache_write: 0.15\n"
        "          output: 0.2\n"
        "          request: 0.001\n"
        "          tiers:\n"
        "            - {above: 5, input: 1, cached_input: 3, cache_write: 4, output: 2}\n"
    )
