"""Texts whose characters a tokenizer writes anew: what is held for them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.operations.input_only import EmbeddingsFormat, RerankFormat
from gateway.operations.wire_format import WireFormat
from tests.operations.test_bodies import body


@pytest.mark.parametrize("escaped", [False, True])
def test_characters_that_a_tokenizer_writes_anew_count_as_it_writes_them(escaped: bool) -> None:
    def bound(wire: WireFormat, **fields: Any) -> int:
        raw = json.dumps({"model": "m", **fields}, ensure_ascii=escaped).encode()
        return body(wire, raw).prompt_tokens_bound()

    blessing = "\ufdfa" * 10_000  # one character of three bytes, of which NFKC makes 18 of 33
    plain = bound(EmbeddingsFormat(), input="x" * 10_000)
    assert bound(EmbeddingsFormat(), input=blessing) >= plain + 310_000
    assert bound(EmbeddingsFormat(), input=["a", "b", "c"], instruction=blessing) >= 3 * 330_000
    assert bound(RerankFormat(), query="q", documents=["a", {"text": blessing}]) >= 330_000
    assert bound(RerankFormat(), query=blessing, documents=["a", "b", "c"]) >= 3 * 330_000
    assert bound(EmbeddingsFormat(), input="\u00e4" * 10_000) <= plain + (50_000 if escaped else 10_000), (
        "others as before"
    )
