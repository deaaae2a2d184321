"""An alias is another name of a model: callers may name either, and records have the name that was asked for, too."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway import Outcome
from gateway.admin.actions.requests import in_words
from gateway.base.errors import GatewayError
from gateway.config.schema import load
from gateway.store.client.client import Client
from gateway.testing import running
from tests.metrics.scrape import scrape, value
from tests.whole.aftermath import charged, last_end_record
from tests.whole.raw import ask, chat, get
from tests.whole.scripted import Scripted
from tests.whole.test_channels import GOOD

FILE = """
channels: {{east: {{base_url: "{url}"}}}}
models:
  words: {{input: 1, output: 2, max_output_tokens: 100, channels: [{{use: east, model: theirs}}]}}
  other: {{free: true, channels: [east]}}
aliases: {{fast: words, "claude-sonnet": other}}
groups: {{default: {{models: {models}}}}}
plugins: [{{use: usage-logger}}, {{use: auth}}, {{use: quota}}, {{use: model-routing}}]
"""


@pytest.mark.parametrize("models", ["[words]", "[fast]", '["*"]'])
async def test_an_alias_has_the_price_and_the_permissions_of_its_model(
    store_url: str, client: Client, tmp_path: Path, models: str
) -> None:
    async with (
        Scripted(GOOD) as upstream,
        running(FILE.format(url=upstream.base_url, models=models), tmp_path, store_url) as gateway,
    ):
        token = await gateway.token()
        listed = json.loads((await ask(gateway.port, get("/v1/models", token))).body)["data"]
        one = json.loads((await ask(gateway.port, get("/v1/models/fast", token))).body)
        answers = [await ask(gateway.port, chat(token, {"model": name})) for name in ("words", "fast")]
        record = await last_end_record(gateway)
        samples = scrape(gateway.gateway.runner.metrics.shared)
        spent = await charged(gateway)
    named = {each["id"]: each["pricing"] for each in listed}
    everything = {"words", "other", "fast", "claude-sonnet"}
    assert named.keys() == (everything if models == '["*"]' else {"words", "fast"})
    assert named["fast"] == named["words"] == one["pricing"]
    assert [answer.status for answer in answers] == [200, 200]
    assert all(b'"model":"theirs"' in request for request in upstream.requests)
    assert (record.model, record.requested_model, record.changed_by) == ("words", "fast", ["aliases"])
    assert "changed by aliases" in in_words(record)
    assert 0 < record.charge_micros * 2 == spent
    assert value(samples, "requests_total", outcome="completed", model="words", channel="east") == 2


async def test_a_model_that_is_not_open_is_not_open_under_its_alias(
    store_url: str, client: Client, tmp_path: Path
) -> None:
    async with running(FILE.format(url="http://127.0.0.1:1/v1", models="[words]"), tmp_path, store_url) as gateway:
        token = await gateway.token()
        answer = await ask(gateway.port, chat(token, {"model": "claude-sonnet"}))
        record = await last_end_record(gateway)
    assert (answer.status, answer.error["code"]) == (404, "model_not_found")
    assert (record.outcome, record.model, record.requested_model) == (Outcome.REFUSED, "other", "claude-sonnet")


@pytest.mark.parametrize(
    ("aliases", "message"),
    [
        ("{fast: nowhere}", "aliases.fast: there is no model `nowhere`"),
        ("{other: words}", "aliases.other: `other` is a model already; give the alias another name"),
        ("{fast: words, faster: fast}", "aliases.faster: an alias of an alias; name the model itself"),
        ('{"a\\nb": words}', "a name has 1 to 128 characters, and no control characters"),
    ],
)
def test_a_wrong_alias_is_refused(tmp_path: Path, aliases: str, message: str) -> None:
    text = FILE.format(url="http://127.0.0.1:1/v1", models="[words]")
    file = tmp_path / "gateway.yaml"
    file.write_text(text.replace('{fast: words, "claude-sonnet": other}', aliases))
    with pytest.raises(GatewayError) as refused:
        load(file)
    assert message in str(refused.value)
