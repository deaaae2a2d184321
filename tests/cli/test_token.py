"""The token commands show a token once, and afterwards only its id."""

from __future__ import annotations

import asyncio
import json
import re
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from gateway.base.errors import Refused
from gateway.cli import token
from gateway.cli.commands import add
from gateway.store.client.client import Client
from gateway.store.pepper import PepperSource, make_pepper
from gateway.store.tokens import TokenError, Tokens
from tests.patience import PATIENCE_S

app = typer.Typer()
add(app, "account", "token")


@pytest.fixture(autouse=True)
def configured(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    store_url: str,
) -> None:
    """A configuration on a store with one account."""
    file = tmp_path / "gateway.yaml"
    file.write_text(
        f"redis: {store_url}\ndata: {tmp_path}\ngroups: {{default: {{}}}}\nstore: {{timeout: {PATIENCE_S}}}\n"
    )
    monkeypatch.setenv("GATEWAY_CONFIG", str(file))
    make_pepper(tmp_path)
    assert CliRunner().invoke(app, ["account", "create", "alice"]).exit_code == 0


@pytest.fixture
def tried(tmp_path: Path, store_url: str) -> Any:
    """Return the id of a token that authenticates, or else the code of the refusal."""

    async def attempt(text: str) -> str:
        client = Client.connect(store_url, timeout_s=PATIENCE_S)
        try:
            return (await Tokens(client, PepperSource(tmp_path)).authenticate(text)).token.id
        except Refused as refused:
            return refused.code
        finally:
            await client.close()

    return lambda text: asyncio.run(attempt(text))


def call(*arguments: str, answer: str = "") -> Any:
    return CliRunner().invoke(app, ["token", *arguments], input=answer)


def run(*arguments: str, answer: str = "") -> Any:
    result = call(*arguments, answer=answer)
    assert result.exit_code == 0, result.output
    return result


def as_json(*arguments: str) -> Any:
    return json.loads(run(*arguments, "--json").stdout)


def refused(*arguments: str) -> str:
    """Return the error that a command raises; the command line prints it on one line and exits with 1."""
    error = call(*arguments).exception
    assert isinstance(error, TokenError)
    return str(error)


def test_a_new_token_works_and_is_shown_once(tried: Any) -> None:
    created = as_json("create", "alice", "--name", "laptop")
    assert tried(created["token"]) == created["id"]
    assert created["id"].startswith("alice-")
    for output in (run("list", "alice").output, run("list", "alice", "--json").output):
        assert created["id"] in output
        assert created["token"][-28:] not in output


def test_people_get_the_token_on_a_line_of_its_own(tried: Any) -> None:
    last = run("create", "alice").stdout.splitlines()[-1]
    assert tried(last).startswith("alice-")


def seconds_of(token: Any) -> float:
    return datetime.fromisoformat(token["expires_at"]).timestamp()


def test_the_restrictions_of_a_token_are_stored_and_listed() -> None:
    began = int(time.time())
    created = as_json(
        *("create", "alice", "--name", "ci", "--expires", "30d"),
        *("--models", "a, b-*", "--addresses", "10.1.2.3/8,::1"),
    )
    assert began <= seconds_of(created) - 30 * 86400 <= time.time() + 1
    assert (created["models"], created["addresses"]) == (["a", "b-*"], ["10.0.0.0/8", "::1/128"])
    [listed] = [json.loads(line) for line in run("list", "alice", "--json").stdout.splitlines()]
    assert listed == {name: value for name, value in created.items() if name != "token"}
    assert as_json("show", created["id"]) == listed
    assert run("show", created["id"]).stdout.splitlines()[0].split() == ["id", created["id"]]
    header, line = run("list", "alice").output.splitlines()
    assert header.split()[:3] == ["id", "name", "status"]
    assert line.split()[:3] == [created["id"], "ci", "active"]


@pytest.mark.parametrize(("text", "seconds"), [("45s", 45), ("90m", 5400), ("12h", 43200), ("2d", 172800)])
def test_the_time_to_expiry_is_written_short(text: str, seconds: int) -> None:
    began = int(time.time())
    assert began <= seconds_of(as_json("create", "alice", "--expires", text)) - seconds <= time.time() + 1


@pytest.mark.parametrize("text", ["0d", "30", "d", "-1d", "1w", "1.5h", "soon"])
def test_an_invalid_time_is_wrong_usage(text: str) -> None:
    result = call("create", "alice", f"--expires={text}")
    assert result.exit_code == 2
    assert "30d, 12h" in " ".join(result.output.replace("│", " ").split())
    assert run("list", "alice", "--json").stdout == ""


def test_a_token_is_disabled_and_enabled(tried: Any) -> None:
    created = as_json("create", "alice")
    assert as_json("disable", created["id"])["status"] == "disabled"
    assert tried(created["token"]) == "token_disabled"
    assert as_json("enable", created["id"])["status"] == "active"
    assert tried(created["token"]) == created["id"]


def test_deleting_asks_first(tried: Any) -> None:
    created = as_json("create", "alice", "--name", "laptop")
    for answer in ("n\n", ""):
        result = call("delete", created["id"], answer=answer)
        assert result.exit_code == 1
        assert "laptop" in result.output
    assert tried(created["token"]) == created["id"]
    assert as_json("delete", created["id"], "--yes") == {"id": created["id"], "deleted": True}
    assert tried(created["token"]) == "token_invalid"
    assert "no token" in refused("delete", created["id"], "--yes")


def test_errors_do_not_repeat_a_token() -> None:
    created = as_json("create", "alice")
    for command in (("show",), ("set", "--name", "x"), ("disable",), ("enable",), ("delete",)):
        assert created["token"][-28:] not in refused(*command, created["token"])
        assert "no token" in refused(*command, "alice-00000000")
    assert "no open account" in refused("create", "bob")
    assert "no address or network" in refused("create", "alice", "--addresses", "10.0.0.0/33")


def test_an_empty_list_says_how_to_create_a_token() -> None:
    assert "gateway token create alice" in run("list", "alice").output
    assert run("list", "alice", "--json").output == ""


def test_budgets_and_limits_of_a_token_are_stored_listed_and_changed() -> None:
    created = as_json(
        *("create", "alice", "--budget", "total=5", "--budget", "day=1", "--budget", "requests=7"),
        *("--requests-per-minute", "10", "--tokens-per-minute", "1000", "--concurrent", "2"),
    )
    assert (created["budgets"]["total_micros"], created["budgets"]["day_micros"]) == (5_000_000, 1_000_000)
    assert created["limits"] == {"requests_per_minute": 10, "tokens_per_minute": 1000, "concurrent": 2}
    [listed] = [json.loads(line) for line in run("list", "alice", "--json").stdout.splitlines()]
    assert listed == {name: value for name, value in created.items() if name != "token"}
    table = run("list", "alice").output
    assert "day 1.00, total 5.00, requests 7 a day" in table
    assert "requests_per_minute 10, tokens_per_minute 1000, concurrent 2" in table
    changed = as_json("set", created["id"], "--budget", "day=none", "--budget", "month=9", "--concurrent", "0")
    assert {name for name, value in changed["budgets"].items() if value} == {"month_micros", "total_micros", "requests"}
    assert changed["limits"] == {"requests_per_minute": 10, "tokens_per_minute": 1000, "concurrent": None}
    for command in ("disable", "enable"):
        assert as_json(command, created["id"])["budgets"] == changed["budgets"]
    assert as_json("set", created["id"], "--name", "x")["limits"] == changed["limits"]


@pytest.mark.parametrize(
    ("option", "text"),
    [
        *(("--budget=hour=1", "names no window"), ("--budget=day=-1", "give more than 0")),
        *(("--budget=day=nan", "is not an amount"), ("--budget=day=0.0000001", "at most six decimals")),
        ("--concurrent=-1", "--concurrent"),
        ("--requests-per-minute=100000001", "--requests-per-minute"),
    ],
)
def test_a_wrong_budget_or_limit_of_a_token_is_wrong_usage(option: str, text: str) -> None:
    token_id = as_json("create", "alice")["id"]
    for command in (("create", "alice"), ("set", token_id)):
        result = call(*command, option)
        assert result.exit_code == 2
        assert text in " ".join(result.output.replace("│", " ").split())
    assert len(run("list", "alice", "--json").stdout.splitlines()) == 1


@pytest.mark.parametrize("command", ["create", "list", "set", "disable", "enable", "delete"])
def test_help_has_an_example(command: str) -> None:
    assert f"gateway token {command}" in " ".join(run(command, "--help").output.split())


def test_a_token_is_replaced_and_the_new_one_is_shown_once(tried: Any) -> None:
    old = as_json("create", "alice", "--name", "laptop", "--budget", "day=1")
    new = as_json("rotate", old["id"], "--overlap", "24h")
    assert (new["name"], new["budgets"], new["replaces"]) == ("laptop", old["budgets"], old["id"])
    assert (tried(old["token"]), tried(new["token"])) == (old["id"], new["id"])
    listed = run("list", "alice", "--json").output
    assert new["token"] not in listed
    assert f'"replaced_by":"{new["id"]}"' in listed
    assert refused("rotate", old["id"], "--overlap", "0") == (
        f"`{old['id']}` was replaced by `{new['id']}` already: rotate that one"
    )
    result = run("rotate", new["id"], "--overlap", "0", "--expires", "30d")
    text = result.stdout.splitlines()[-1]
    assert tried(new["token"]) == "token_expired"
    assert f"sk-{tried(text)}" in text
    assert f"{new['id']} is no longer accepted." in result.stderr
    assert re.search(f"{new['id']} +laptop +replaced ", run("list", "alice").output)
    assert call("rotate", new["id"]).exit_code == 2
    assert call("rotate", new["id"], "--overlap", "366d").exit_code == 2
    assert call("rotate", new["id"], "--overlap", "1x").exit_code == 2


def test_an_expiry_is_a_date_in_the_configured_time_zone(tmp_path: Path) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text(f"{file.read_text()}time_zone: Europe/Berlin\n")
    created = as_json("create", "alice", "--expires", "2200-01-31")
    assert created["expires_at"] == "2200-01-30T23:00:00Z"
    changed = as_json("set", created["id"], "--expires", "2200-07-31T18:30")
    assert changed["expires_at"] == "2200-07-31T16:30:00Z"
    assert "2200-07-31 18:30:00+02:00" in run("list", "alice").output
    for text, why in {
        "2020-01-31": "`2020-01-31` is past: it is 20",
        "9999-12-31": "is too late",
        "99999999d": "is too late",
        "2200-02-30": "is not a time; write 30d",
        "2200-01": "is not a time; write 30d",
    }.items():
        result = call("set", created["id"], "--expires", text)
        assert result.exit_code == 2
        assert why in " ".join(result.output.replace("│", " ").split())
    assert as_json("set", created["id"], "--expires", "none")["expires_at"] is None


def test_what_a_token_is_for_is_changed_and_the_rest_stays(tried: Any) -> None:
    created = as_json("create", "alice", "--name", "ci", "--budget", "day=1", "--addresses", "10.0.0.0/8")
    changed = as_json("set", created["id"], "--name", "laptop", "--models", "a, b-*", "--addresses", "::1")
    assert (changed["name"], changed["models"], changed["addresses"]) == ("laptop", ["a", "b-*"], ["::1/128"])
    assert changed["budgets"] == created["budgets"]
    changed = as_json("set", created["id"], "--models", "", "--addresses", "")
    assert (changed["name"], changed["models"], changed["addresses"]) == ("laptop", [], [])
    assert tried(created["token"]) == created["id"]
    assert "no address or network" in refused("set", created["id"], "--addresses", "10.0.0.0/33")


def test_models_that_there_are_not_are_warned_of_and_the_token_is_made(tmp_path: Path) -> None:
    file = tmp_path / "gateway.yaml"
    more = "channels: {one: {base_url: 'http://h/v1'}}\nmodels: {small: {input: 1, output: 2, channels: [one]}}\n"
    file.write_text(file.read_text() + more)
    result = run("create", "alice", "--models", "smal", "--json")
    notes = result.stderr.splitlines()
    assert notes[0] == "note: there is no model `smal`; did you mean `small`?"
    token_id = json.loads(result.stdout)["id"]
    assert notes[1].startswith(f"note: `{token_id}` may use no model now: ")
    assert run("set", token_id, "--models", "small").stderr == ""
    assert "did you mean" in run("set", token_id, "--models", "small,smalll").stderr


def test_the_tokens_of_all_accounts_are_listed_page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "There are no tokens yet." in run("list").output
    monkeypatch.setattr(token, "PAGE", 2)
    for name in ("carol", "robert"):
        assert (
            CliRunner().invoke(app, ["account", "create", name, "--external-id", f"{name}@example.com"]).exit_code == 0
        )
    created = [as_json("create", name)["id"] for name in ("robert", "alice", "ext:carol@example.com")]
    listed = [json.loads(line)["id"] for line in run("list", "--json").stdout.splitlines()]
    assert listed == sorted(created)
    lines = run("list").output.splitlines()
    assert [line.split()[0] for line in lines] == ["id", *listed[:2], "id", listed[2]]
    assert listed[1] in run("list", "ext:carol@example.com").output


def test_a_token_whose_successor_was_deleted_is_replaced_again(tried: Any) -> None:
    old = as_json("create", "alice")
    gone = as_json("rotate", old["id"], "--overlap", "24h")
    run("delete", gone["id"], "--yes")
    assert "which was deleted: say when the new one expires" in refused("rotate", old["id"], "--overlap", "0s")
    new = as_json("rotate", old["id"], "--overlap", "0s", "--expires", "30d")
    assert tried(new["token"]) == new["id"]
    assert tried(old["token"]) == "token_expired"
