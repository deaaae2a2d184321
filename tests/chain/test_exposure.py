"""The exposure is computed from the configuration alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.chain import loading
from gateway.chain.checks import Exposure, exposure_of, max_prompt_tokens
from gateway.chat.prompt import PartTokens
from gateway.chat.request import BodyRules, check
from gateway.config.schema import load

FILE = """
data: {folder}
port: {{max_body: 1200}}
channels: {{a: {{base_url: 'http://a/v1'}}, b: {{base_url: 'http://b/v1'}}}}
models:
  cheap: {{input: 1, output: 1, channels: [a]}}
  dear: {{input: 10, output: 20, channels: [a, b]}}
groups:
  default: {{ratio: 0.5}}
  dearer: {{ratio: 2}}
  modest: {{ratio: 9, models: [cheap]}}
plugins: [{{use: auth}}, {quota}{{use: model-routing}}]
"""
PROMPT = 7 * 1200 + 100 * 16 + 128 + 640 + 109 * 128_000
"""Of every byte, of the messages, of the request and of the files that fit."""
DEAREST = 2 * ((PROMPT + 300) * 10 + 16 * 1_000_000 * 20)


def bound(folder: Path, quota: str) -> Exposure | None:
    (folder / "gateway.yaml").write_text(FILE.format(folder=folder, quota=quota))
    loaded = load(folder / "gateway.yaml")
    return exposure_of(loaded.config, loading.build(loaded))


def test_with_full_holds_no_balance_falls_below_its_credit_line(tmp_path: Path) -> None:
    assert bound(tmp_path, "{use: quota, with: {max_holds: 7}}, ") == Exposure(
        DEAREST, "dear", "dearer", 0, 7 * DEAREST
    )


def test_the_cost_beyond_a_hold_counts_once_for_each_hold(tmp_path: Path) -> None:
    found = bound(tmp_path, "{use: quota, with: {max_holds: 7, max_hold: 1.5}}, ")
    assert found is not None
    assert found.overdraft == 7 * (DEAREST - 1_500_000)
    assert str(found).startswith(
        "every balance stays >= -credit line - 6424.33; one failover of the store may take it 6434.83 further"
    )
    assert found.in_words == found.warning
    assert found.warning.startswith("a balance can fall 6424.33 below its credit line: `max_hold` ")
    exact = bound(tmp_path, "{use: quota, with: {max_holds: 7}}, ")
    assert exact is not None
    assert (exact.warning, exact.in_words) == ("", "no balance falls below zero, or below its account's credit line")


@pytest.mark.parametrize("count", [1, 10, 100])
@pytest.mark.parametrize(
    ("message", "times"),
    [
        ('{"role":""}', 1),
        ('{"role":"","content":"<"}', 1),
        ('{"role":"x","content":[PARTS]}', 9),
        ('{"role":"x","content":[{"type":"image","content":[PARTS]}]}', 4),
    ],
)
@pytest.mark.parametrize("part", ['{"file":0}', '{"type":"file"}', '{"type":0}', '{"file":0,"image_url":0}', "{}", "0"])
def test_no_body_counts_more_input_than_its_size_allows(count: int, message: str, times: int, part: str) -> None:
    messages = ",".join([message.replace("PARTS", ",".join([part] * times))] * count)
    body = check(f'{{"model":"m","stream":true,"messages":[{messages}]}}'.encode(), BodyRules())
    for parts in (PartTokens(), PartTokens(1, 1, 10**7), PartTokens(10**7, 1, 1)):
        assert body.prompt_tokens_bound(parts) <= max_prompt_tokens(body.size, parts)


@pytest.mark.parametrize("quota", ["", "{use: quota, enabled: false}, "])
def test_without_quota_there_is_no_exposure(tmp_path: Path, quota: str) -> None:
    assert bound(tmp_path, quota) is None
