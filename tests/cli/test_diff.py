"""`gateway diff` shows what would change, and never a secret."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gateway.cli.commands import program
from gateway.config.schema import SESSION_HEADERS
from gateway.store.accounts import Accounts, AccountStatus
from gateway.store.client.client import Client
from gateway.store.pepper import PepperSource, make_pepper
from gateway.store.tokens import Tokens
from tests.patience import PATIENCE_S

BEFORE = """
listen: 127.0.0.1:8080
redis: redis://:store-password@127.0.0.1:1
channels:
  one: {base_url: http://127.0.0.1:1/v1, api_key: secret-of-one}
  two: {base_url: http://127.0.0.1:2/v1}
models:
  small: {input: 1, output: 2, channels: [one]}
  large: {input: 1, output: 2, channels: [two]}
groups: {default: {}}
plugins:
  [{use: usage-logger}, {use: auth}, {use: rate-limit, with: {requests_per_minute: 60}}, {use: quota}, {use: model-routing}]
port: {max_body: 65536}
"""


def diff(tmp_path: Path, after: str, *options: str, before: str = BEFORE) -> list[str]:
    (tmp_path / "before.yaml").write_text(before)
    (tmp_path / "after.yaml").write_text(after)
    arguments = ["diff", str(tmp_path / "after.yaml"), "--config", str(tmp_path / "before.yaml"), *options]
    result = CliRunner().invoke(program(), arguments)
    assert result.exit_code == 0, result.output
    assert "secret" not in result.output
    assert "password" not in result.output
    return result.output.splitlines()


def test_the_same_file_changes_nothing(tmp_path: Path) -> None:
    assert diff(tmp_path, BEFORE) == ["nothing would change"]


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("small: {input: 1", "small: {input: 3", "models.small.input: 1 becomes 3"),
        (
            "groups: {default: {}}",
            "groups: {default: {}}\nalerts: {webhook: 'http://h/secret'}",
            "alerts: is added: {webhook: ...}",
        ),
        ("groups: {default: {}}", "groups: {default: {}, trial: {}}", "groups.trial: is added"),
        ("{default: {}}", "{default: {budgets: {month: 0.5}}}", "groups.default.budgets.month: none becomes 0.5"),
        ("{default: {}}", "{default: {limits: {concurrent: 2}}}", "groups.default.limits.concurrent: none becomes 2"),
        ("listen:", "time_zone: Europe/Berlin\nlisten:", "time_zone: UTC becomes Europe/Berlin"),
        ("http://127.0.0.1:2/v1", "http://127.0.0.1:2/v1, timers: {idle: 9}", "channels.two.timers.idle: 60 becomes 9"),
        ("{max_body: 65536}", "{max_body: 65536, trusted_proxies: [10.0.0.2]}", "port.trusted_proxies: adds 10.0.0.2"),
        ("secret-of-one", "secret-of-two", "channels.one.api_key: changes"),
        ("store-password", "other-password", "redis: changes  (needs a restart)"),
        ("two: {base_url", "two: {proxy: 'http://u:password@p:1', base_url", "channels.two.proxy: changes"),
        (
            "groups: {default: {}}",
            "groups: {default: {}}\nusage: {clickhouse: 'https://u:password@h:1/d'}",
            "usage.clickhouse: changes  (needs a restart)",
        ),
        ("{max_body: 65536}", "{max_body: 65536, drain: 5}", "port.drain: 30 becomes 5  (needs a restart)"),
        ("8080", "8081", "listen: 127.0.0.1:8080 becomes 127.0.0.1:8081  (needs a restart)"),
        ("{use: quota}", "{use: quota, with: {max_holds: 3}}", "plugins.quota.with.max_holds: is set to 3"),
        (
            "port: {max_body: 65536}",
            "port: {max_body: 131072}",
            "port.max_body: 65536 becomes 131072  (needs a restart)",
        ),
        (
            "with: {requests_per_minute: 60}",
            "with: {requests_per_minute: 10}",
            "plugins.rate-limit.with.requests_per_minute: 60 becomes 10",
        ),
        ("{use: quota}", "{use: quota, enabled: false}", "plugins.quota: is removed"),
        (
            "{use: rate-limit, with: {requests_per_minute: 60}}, {use: quota}",
            "{use: quota}, {use: rate-limit, with: {requests_per_minute: 60}}",
            "plugins: the order becomes usage-logger, auth, quota, rate-limit, model-routing",
        ),
    ],
)
def test_each_change_is_one_line(tmp_path: Path, old: str, new: str, line: str) -> None:
    assert diff(tmp_path, BEFORE.replace(old, new, 1)) == [line]


def test_what_a_file_of_a_secret_holds_is_not_shown(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).write_text(f"secret-password-{name}\n")
    (tmp_path / "before.yaml").write_text(BEFORE)
    line = "{base_url: 'http://h/${file:one}', api_key: '${file:two}'}"
    assert diff(tmp_path, BEFORE.replace("{base_url: http://127.0.0.1:2/v1}", line)) == [
        "channels.two.base_url: http://127.0.0.1:2/v1 becomes http://h/${file:one}",
        "channels.two.api_key: changes",
    ]


def test_of_a_plugins_settings_numbers_and_switches_are_shown_and_texts_are_not(tmp_path: Path) -> None:
    (tmp_path / "kept.py").write_text(
        "from gateway import Plugin\n\nclass Kept(Plugin):\n    within: dict[str, object]\n    loud: bool = True\n"
    )
    kept = "{use: 'kept:Kept', with: {within: %s, loud: %s}}, {use: auth}"
    before = BEFORE.replace("{use: auth}", kept % ("{text: secret-1, pin: 4711, a: {b: 1}, c: 2}", "true"))
    after = BEFORE.replace("{use: auth}", kept % ("{text: secret-2, pin: 4712, a: {b: 2}}", "false"))
    assert diff(tmp_path, after, before=before) == [
        "plugins.kept:Kept.with.within.text: changes",
        "plugins.kept:Kept.with.within.pin: changes",
        "plugins.kept:Kept.with.within.a.b: 1 becomes 2",
        "plugins.kept:Kept.with.within.c: is removed",
        "plugins.kept:Kept.with.loud: true becomes false",
    ]


def test_of_long_lists_what_is_added_and_removed_is_shown(tmp_path: Path) -> None:
    names = [f"model-{number:02}" for number in range(20)]
    before = BEFORE.replace("{default: {}}", f"{{default: {{models: ['*', {', '.join(names)}]}}}}")
    after = before.replace("model-07", "model-77")
    lines = ["groups.default.models: adds model-77", "groups.default.models: removes model-07"]
    assert diff(tmp_path, after, before=before)[:2] == lines


def test_channels_of_a_model_are_compared_by_their_names(tmp_path: Path) -> None:
    before = BEFORE.replace("{input: 1, output: 2, channels: [one]}", "{input: 1, output: 2, channels: [one, two]}")
    after = before.replace(
        "channels: [one, two]", "channels: [{use: one, priority: 1}, {use: three, model: m, weight: 3}]"
    )
    after = after.replace("channels:\n", "channels:\n  three: {base_url: http://127.0.0.1:3/v1, api_key: secret}\n", 1)
    after += "aliases: {fast: small}\nsession_headers: [x-own]\n"
    assert diff(tmp_path, after, before=before) == [
        "session_headers: adds x-own",
        *(f"session_headers: removes {name}" for name in SESSION_HEADERS),
        "channels.three: is added: {base_url: 'http://127.0.0.1:3/v1', api_key: ...}",
        "models.small.channels.two: is removed",
        "models.small.channels.one.priority: 0 becomes 1",
        "models.small.channels.three: is added: {use: three, model: m, weight: 3}",
        "aliases.fast: is added: small",
    ]


def test_scripts_get_one_object_a_line(tmp_path: Path) -> None:
    (line,) = diff(tmp_path, BEFORE.replace("8080", "8081"), "--json")
    assert json.loads(line)["takes"] == "restart"


def test_a_wrong_new_file_is_one_line_and_exit_2(tmp_path: Path) -> None:
    (tmp_path / "before.yaml").write_text(BEFORE)
    (tmp_path / "after.yaml").write_text(BEFORE.replace("{use: auth}, ", ""))
    arguments = ["diff", str(tmp_path / "after.yaml"), "--config", str(tmp_path / "before.yaml")]
    result = CliRunner().invoke(program(), arguments)
    assert result.exit_code == 2
    assert "needs Caller" in result.output


async def test_accounts_and_tokens_that_would_be_locked_out_are_counted(
    tmp_path: Path, store_url: str, client: Client
) -> None:
    accounts, tokens = Accounts(client), Tokens(client, PepperSource(tmp_path))
    make_pepper(tmp_path)
    for name, group in {"alice": "trial", "robert": "trial", "carol": "default", "dave": "default"}.items():
        await accounts.create(name, group)
    await accounts.create("closed", "trial")
    await accounts.change("closed", status=AccountStatus.CLOSED)
    await accounts.change("carol", models=["large"])
    restricted = [await tokens.create(name, models=["large"]) for name in ("alice", "carol", "dave")]
    await tokens.create("dave", models=["large", "small"])
    store = f"redis: {store_url}\ndata: {tmp_path}\nstore: {{timeout: {PATIENCE_S}}}\n"
    before = BEFORE.replace("redis: redis://:store-password@127.0.0.1:1\n", store)
    before = before.replace("groups: {default: {}}", "groups: {default: {}, trial: {}}")
    after = before.replace("  large: {input: 1, output: 2, channels: [two]}\n", "").replace(", trial: {}", "")
    assert await asyncio.to_thread(diff, tmp_path, after, before=before) == [
        "models.large: is removed",
        "groups.trial: is removed",
        "groups.trial: 2 accounts in it would be refused with 403: alice, robert",
        "accounts: 1 could use no model any more: carol",
        f"tokens: 1 could use no model any more: {restricted[2].id}",
    ]


def test_whom_it_locks_out_is_not_counted_without_a_store(tmp_path: Path) -> None:
    lines = diff(tmp_path, BEFORE.replace("  large: {input: 1, output: 2, channels: [two]}\n", ""))
    assert lines[0] == "models.large: is removed"
    assert lines[1].startswith("accounts: those that could use no model any more are not counted: the store ")
    assert lines[1].endswith(" (it is at 127.0.0.1:1)")
    assert len(lines) == 2
