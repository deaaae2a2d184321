"""`gateway explain` shows what would happen to a request, and changes nothing in the store."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gateway.chain.services import Store
from gateway.cli.commands import program
from gateway.config.schema import load
from gateway.domain.facts import AccountLimits
from gateway.operations.operation import SERVED
from gateway.store.accounts import AccountStatus
from gateway.store.channels import ChannelLimits, ChannelReport
from gateway.store.pepper import make_pepper
from gateway.store.tokens import TokenStatus
from tests.store.conftest import new_request_id

FILE = """
redis: {url}
store: {{timeout: 50}}
data: {folder}
channels:
  one: {{base_url: "http://127.0.0.1:9/v1"}}
  two: {{base_url: "http://127.0.0.1:9/v1", concurrent: 1}}
  far: {{base_url: "http://127.0.0.1:9/v1"}}
models:
  m:
    input: 1
    output: 2
    max_output_tokens: 100
    channels: [one, {{use: two, model: m2, priority: 1, cost: {{input: 0.5, output: 1, request: 0.01}}}}, far]
groups:
  default: {{channels: [one, two]}}
  shut: {{enabled: false}}
  trial: {{models: [small]}}
plugins:
  - use: usage-logger
  - use: auth
  - use: rate-limit
    with: {{requests_per_minute: 60, tokens_per_minute: 1000, concurrent: 2}}
{more}
  - use: quota
  - use: model-routing
"""
RULES = AccountLimits(60, 1000, 2)
TERMS: dict[str, Any] = {"floor": 0, "lease_ms": 60_000, "fingerprint": "a", "max_holds": 100}


class Command:
    """A gateway's file, its store, and the token of an account with 1000 micros."""

    def __init__(self, file: Path, store: Store, token: str) -> None:
        self.file, self.store, self.token = file, store, token

    async def run(self, *more: str, code: int = 0, token: str | None = None, stdin: str = "", model: str = "m") -> str:
        """Return what the command prints, and assert that the store is unchanged, byte for byte."""
        named = ["--model", model] if model else []
        command = ["explain", "--config", str(self.file), *named, "--max-tokens", "10", *more]
        environment = {"GATEWAY_TOKEN": self.token if token is None else token}
        before = await self.dump()
        result = await asyncio.to_thread(CliRunner().invoke, program(), command, env=environment, input=stdin)
        assert result.exit_code == code, result.output
        assert await self.dump() == before
        assert self.token not in result.output
        return result.output

    async def explain(self, *more: str, code: int = 0, token: str | None = None, model: str = "m") -> dict[str, Any]:
        explanation: dict[str, Any] = json.loads(await self.run(*more, "--json", code=code, token=token, model=model))
        return explanation

    async def refusal(self, *more: str, token: str | None = None, model: str = "m") -> tuple[str, int, str]:
        """Return the plugin that would refuse the request, the status and the code."""
        explanation = await self.explain(*more, code=1, token=token, model=model)
        assert explanation["served"] is False
        return explanation["refusal"]["by"], explanation["refusal"]["status"], explanation["refusal"]["code"]

    async def dump(self) -> dict[bytes, bytes]:
        client = self.store.client
        return {key: await client.call("DUMP", key) for key in await client.call("KEYS", "*")}


@asynccontextmanager
async def command_in(folder: Path, url: str, more: str = "") -> AsyncIterator[Command]:
    file = folder / "gateway.yaml"
    file.write_text(FILE.format(url=url, folder=folder, more=more))
    make_pepper(folder)
    async with Store.open(load(file).config, url) as store:
        await store.accounts.create("acme")
        await store.wallet.credit("acme", "opening", 1000)
        yield Command(file, store, (await store.tokens.create("acme")).token)


@pytest.fixture
async def command(
    tmp_path: Path,
    store_url: str,
) -> AsyncIterator[Command]:
    async with command_in(tmp_path, store_url) as command:
        yield command


async def test_each_plugin_and_channel_of_a_request_that_would_be_served_is_shown(command: Command) -> None:
    lines = (await command.run()).splitlines()
    assert lines[0] == "passes    usage-logger: a record is opened now, and closed at the end"
    assert lines[1].startswith("passes    auth: token acme-")
    assert lines[1].endswith(" of the active account acme, group default")
    assert lines[2:] == [
        "passes    rate-limit: takes 1 of 60 requests left of 60 a minute, 21 of 1000 tokens left of 1000 a minute, "
        "a slot, of 2 at once",
        "passes    quota: holds 0.000268 of 0.001 available, and charges 0.00029 at most, 0.000022 of it for failed attempts",
        "passes    model-routing: m is open to the account, its group and this token; not open to the group: channel far",
        "price     input 1.00, output 2.00, ratio 1, hold 0.000268, most 0.00029, available 0.001",
        "first     channel one, as m",
        "spare     channel two, as m2",
        "cost      input 0.50, output 1.00, ratio 1, request 0.01",
        "The request would be served.",
    ]


async def test_scripts_get_one_object(command: Command) -> None:
    explanation = await command.explain()
    assert explanation["served"] is True
    assert explanation["refusal"] is None
    assert [each["verdict"] for each in explanation["plugins"]] == ["passes"] * 5
    assert explanation["channels"][1] == {
        **{"channel": "two", "model": "m2", "verdict": "spare", "text": ""},
        **{"cost": {"input": 500_000, "output": 1_000_000, "ratio": "1", "request": 10_000}},
        "request": "",
    }
    assert explanation["price"] == {
        **{"input": 1_000_000, "output": 2_000_000, "ratio": "1"},
        **{"hold_micros": 268, "most_micros": 290, "available_micros": 1000},
    }


async def test_the_token_may_come_through_standard_input(command: Command) -> None:
    assert "would be served" in await command.run("--token", "-", token="", stdin=f"{command.token}\n")


async def test_a_token_is_named_by_its_id_with_the_verdicts_that_its_secret_gets(command: Command) -> None:
    [token] = await command.store.tokens.all_of("acme")
    assert await command.explain("--token-id", token.id, token="") == await command.explain()
    restricted = await command.store.tokens.create("acme", models=["large"])
    by_id = await command.explain("--token-id", restricted.id, token="", code=1)
    assert by_id == await command.explain(token=restricted.token, code=1)
    assert by_id["refusal"]["code"] == "token_restricted"
    await command.store.tokens.set_status(token.id, TokenStatus.DISABLED)
    assert await command.refusal("--token-id", token.id, token="") == ("auth", 401, "token_disabled")
    assert "there is no token `acme-00000000`" in await command.run("--token-id", "acme-00000000", code=3)
    assert "not both" in await command.run("--token-id", token.id, "--account", "acme", code=2)


async def test_an_account_is_explained_without_the_restrictions_of_its_tokens(command: Command) -> None:
    by_token = await command.explain()
    by_account = await command.explain("--account", "acme", token="")
    assert by_account["plugins"][2:] == by_token["plugins"][2:]
    assert by_account["price"] == by_token["price"]
    [token] = await command.store.tokens.all_of("acme")
    text = f"the active account acme, group default; its tokens, which may restrict this further: {token.id}"
    assert by_account["plugins"][1] == {"plugin": "auth", "verdict": "passes", "text": text, "changes": []}
    async with command.store.external_ids.claimed("empty", "user-17"):
        await command.store.accounts.create("empty", "trial", external_id="user-17")
    assert "group trial; its tokens, none yet" in await command.run("--account", "ext:user-17", token="", code=1)
    assert "there is no account `nobody`" in await command.run("--account", "nobody", code=3)
    await command.store.accounts.change("acme", status=AccountStatus.SUSPENDED)
    assert await command.refusal("--account", "acme") == ("auth", 403, "account_inactive")


async def test_without_a_model_each_one_is_explained_in_a_line(command: Command) -> None:
    text = command.file.read_text()
    command.file.write_text(
        text.replace("groups:\n", "  small: {input: 1, output: 2, channels: [far, one]}\ngroups:\n")
    )
    await command.store.accounts.create("empty", "trial")
    lines = (await command.run("--account", "empty", model="", code=1)).splitlines()
    assert lines[0].split() == ["model", "result", "why"]
    assert lines[1].split(maxsplit=4)[1:4] == ["refused:", "404", "model_not_found"]
    assert lines[1].endswith("model-routing: group trial allows small.")
    assert "402 insufficient_balance" in lines[2]
    assert "that is 0.000272, and 0.00 is left" in lines[2]
    explained = [json.loads(line) for line in (await command.run("--json", model="")).splitlines()]
    assert [(each["model"], each["served"]) for each in explained] == [("m", True), ("small", True)]


async def test_a_caller_that_is_refused_by_auth_leaves_the_plugins_below_unknown(command: Command) -> None:
    explanation = await command.explain(token="", code=1)
    assert [each["verdict"] for each in explanation["plugins"]] == [
        "passes",
        "refuses",
        "unknown",
        "unknown",
        "unknown",
    ]
    assert explanation["plugins"][2]["text"] == "needs Caller, which nothing above it provided"
    assert await command.refusal(token="") == ("auth", 401, "token_missing")
    await command.store.accounts.change("acme", group="shut")
    assert await command.refusal() == ("auth", 403, "group_forbidden")
    await command.store.accounts.change("acme", status=AccountStatus.SUSPENDED)
    assert await command.refusal() == ("auth", 403, "account_inactive")


async def test_a_token_for_certain_addresses_is_explained_for_one(command: Command) -> None:
    token = (await command.store.tokens.create("acme", addresses=["192.0.2.0/24"])).token
    assert (await command.explain("--address", "192.0.2.7", token=token))["served"] is True
    assert await command.refusal(token=token) == ("auth", 403, "token_restricted")


async def test_a_model_that_does_not_exist_is_refused_by_routing(command: Command) -> None:
    assert await command.refusal("--model", "gpt-77") == ("model-routing", 404, "model_not_found")


async def test_a_model_outside_the_group_is_refused_with_the_operators_reason_also_without_money(
    command: Command,
) -> None:
    account = await command.store.accounts.change("acme", group="trial")
    await command.store.wallet.adjust("acme", "all", -account.balance_micros, "none left")
    assert await command.refusal() == ("model-routing", 404, "model_not_found")
    message = (await command.explain(code=1))["refusal"]["message"]
    assert message.startswith("There is no model 'm', or it is not available to this account.")
    assert message.endswith("The reason: group trial allows small.")
    await command.store.accounts.change("acme", group="default")
    token = (await command.store.tokens.create("acme", models=["small*", "large"])).token
    assert await command.refusal(token=token) == ("model-routing", 403, "token_restricted")
    assert " allows small*, large." in await command.run(token=token, code=1)


async def test_what_is_left_of_the_limits_is_shown(command: Command) -> None:
    await command.store.limits.take("acme", "r1", scope="rate-limit", rules=RULES, tokens=100, lease_ms=60_000)
    assert re.search("21 of 9[0-9]{2} tokens left of 1000 a minute", await command.run())
    assert await command.refusal("--max-tokens", "2000") == ("rate-limit", 429, "rate_limited")
    await command.store.limits.take("acme", "r2", scope="rate-limit", rules=RULES, tokens=1, lease_ms=60_000)
    explanation = await command.explain(code=1)
    assert explanation["refusal"]["code"] == "too_many_concurrent"
    assert explanation["plugins"][3]["verdict"] == "passes", "what is below a refusal is explanation, too"


async def test_a_balance_that_is_too_low_or_held_is_shown(command: Command) -> None:
    assert await command.refusal("--max-tokens", "400") == ("quota", 402, "insufficient_balance")
    held = await command.store.wallet.hold("acme", new_request_id(), amount=800, **TERMS)
    assert held.held == 800
    explanation = await command.explain(code=1)
    assert explanation["price"]["available_micros"] == 200
    assert explanation["refusal"]["code"] == "insufficient_balance"


async def test_a_channel_that_is_called_for_want_of_another_is_shown_as_first(command: Command) -> None:
    channels = command.store.channels
    await channels.set_enabled("two", enabled=False)
    await channels.sync("w", {"one": ChannelReport(failed=1, cool_ms=60_000, error="upstream_rate_limited")})
    one, two = (await command.explain())["channels"]
    assert (one["verdict"], two["verdict"]) == ("first", "left out")
    assert one["text"].startswith("called although it is cooling until 20")
    await channels.sync("w", {"one": ChannelReport(failed=3)})
    assert [each["verdict"] for each in (await command.explain(code=1))["channels"]] == ["left out", "left out"]


async def test_the_reason_for_leaving_out_a_channel_is_shown(command: Command) -> None:
    channels = command.store.channels
    await channels.sync("w", {"one": ChannelReport(failed=3, cool_ms=60_000, error="upstream_timeout")})
    explanation = await command.explain()
    assert [(turn["channel"], turn["verdict"]) for turn in explanation["channels"]] == [
        ("one", "left out"),
        ("two", "first"),
    ]
    text = explanation["channels"][0]["text"]
    assert text.startswith("cooling until 20")
    assert text.endswith("Z after upstream_timeout")
    await channels.admit("r", [ChannelLimits("two", 1, 0, 60_000, 1000)])
    full = await command.explain(code=1)
    assert full["channels"][1]["text"] == "full"
    assert full["refusal"]["code"] == "model_unavailable"
    await channels.set_enabled("two", enabled=False)
    assert (await command.explain(code=1))["channels"][1]["text"] == "disabled"


PLUGINS = '''
from gateway import Caller, Plugin, Route

class Silent(Plugin):
    """Does not explain itself."""
    async def on_request(self, exchange):
        raise AssertionError("nothing runs")

class Broken(Plugin):
    """Fails."""
    async def on_request(self, exchange):
        raise AssertionError("nothing runs")
    async def explain(self, exchange):
        return {}["nothing"]

class Looks(Plugin):
    """Takes no part."""
    async def on_end(self, exchange):
        raise AssertionError("nothing runs")
'''


async def test_a_plugin_that_does_not_explain_itself_is_shown_as_unknown(
    tmp_path: Path,
    store_url: str,
) -> None:
    (tmp_path / "odd.py").write_text(PLUGINS)
    more = "  - use: odd:Silent\n  - use: odd:Looks\n  - use: odd:Broken\n    on_error: ignore\n"
    async with command_in(tmp_path, store_url, more) as command:
        explanation = await command.explain()
        assert [(each["verdict"], each["text"]) for each in explanation["plugins"][3:6]] == [
            ("unknown", "does not explain itself: it has no `explain`"),
            ("passes", "has no part in the decision"),
            ("passes", "fails with KeyError, which is ignored"),
        ]
        assert "would be served, unless it is refused by odd:Silent, which cannot say." in await command.run()
        command.file.write_text(command.file.read_text().replace("    on_error: ignore\n", ""))
        assert await command.refusal() == ("odd:Broken", 500, "internal_error")


async def test_a_chain_whose_routing_does_not_explain_itself_is_neither_served_nor_refused(
    tmp_path: Path,
    store_url: str,
) -> None:
    (tmp_path / "own.py").write_text(PLUGINS.replace('"""Does', 'provides = (Route,)\n    """Does'))
    async with command_in(tmp_path, store_url) as command:
        command.file.write_text(command.file.read_text().replace("model-routing", "own:Silent"))
        assert (await command.explain(code=1))["served"] is None
        assert "It is not known whether" in await command.run(code=1)


async def test_an_unreachable_store_is_an_error(command: Command) -> None:
    command.file.write_text(re.sub("redis: .*\nstore: .*", "redis: redis://127.0.0.1:1", command.file.read_text()))
    assert "\ngateway: the store is not reached" in await command.run(code=6)


OPERATIONS = """
redis: {url}
store: {{timeout: 50}}
data: {folder}
channels: {{one: {{base_url: "http://127.0.0.1:9/v1", operations: [{operations}]}}}}
models:
  m: {{input: 1, output: 2, max_output_tokens: 100, image: 0.0005, second: 0.0001, character: 15, channels: [one]}}
  ears: {{second: 0.0001, channels: [one]}}
groups: {{default: {{}}}}
plugins: [{{use: usage-logger}}, {{use: auth}}, {{use: rate-limit}}, {{use: quota}}, {{use: model-routing}}]
"""
HELD = {
    "images": 500,
    "images.edits": 500,
    "images.variations": 500,
    "speech": 75,
    "transcriptions": 100,
    "translations": 100,
}
FREE = ("messages.tokens", "responses.tokens", "moderations")


async def test_each_operation_is_explained(
    tmp_path: Path,
    store_url: str,
) -> None:
    async with command_in(tmp_path, store_url) as command:
        text = OPERATIONS.format(url=store_url, folder=tmp_path, operations=", ".join(SERVED))
        command.file.write_text(text)
        for operation in SERVED:
            explained = await command.explain("--operation", operation, "--text", "Hello")
            assert explained["served"], operation
            assert [each["channel"] for each in explained["channels"]] == ["one"]
            held = explained["price"].get("hold_micros")
            assert (held is None) == (operation in FREE)
            assert operation not in HELD or held == HELD[operation]
            assert operation in HELD or held is None or 0 <= held < 1000
        assert "is none of" in await command.run("--operation", "models", code=2)
        lines = (await command.run(model="")).splitlines()
        assert [line.split()[:2] for line in lines[-2:]] == [["m", "served"], ["ears", "served"]]
        assert (await command.refusal("--operation", "speech", model="ears"))[1:] == (404, "model_not_found")
