"""The channels command shows what the store has, and disables and enables channels for all gateways."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gateway.cli.commands import program
from gateway.fake_upstream.server import FakeUpstream
from gateway.store.channels import AccountReport, ChannelReport, Channels, fingerprint_of
from gateway.store.client.client import Client
from tests.patience import PATIENCE_S
from tests.whole.scripted import Scripted

app = program()


@pytest.fixture(autouse=True)
def configured(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    store_url: str,
) -> None:
    """A configuration with two channels, one of which has failed."""
    file = tmp_path / "gateway.yaml"
    keys = "api_keys: [canary-4711, canary-4712]"
    two = f"channels: {{one: {{base_url: http://a/v1, {keys}}}, two: {{base_url: http://b/v1}}}}"
    file.write_text(f"redis: {store_url}\ndata: {tmp_path}\n{two}\nstore: {{timeout: {PATIENCE_S}}}\n")
    monkeypatch.setenv("GATEWAY_CONFIG", str(file))

    async def report() -> None:
        other = Client.connect(store_url, timeout_s=PATIENCE_S)
        await Channels(other).sync(
            "w", {"one": ChannelReport(failed=3, error="upstream_timeout", in_flight=2, cool_ms=60_000)}
        )
        await other.close()

    asyncio.run(report())


def run(*arguments: str) -> Any:
    result = CliRunner().invoke(app, ["channels", *arguments])
    assert result.exit_code == 0, result.output
    assert "canary" not in result.output
    return result


def as_json() -> list[dict[str, Any]]:
    return [json.loads(line) for line in run("--json").stdout.splitlines()]


def test_each_channel_is_a_line() -> None:
    head, one, two = run().stdout.splitlines()
    assert head.split()[:2] == ["channel", "condition"]
    assert one.split()[:2] == ["one", "cooling"]
    assert "upstream_timeout, " in one
    assert two.split() == ["two", "healthy", "0", "0", "0"]


def test_accounts_for_which_alone_a_channel_cools_are_counted(store_url: str) -> None:
    async def report() -> None:
        client = Client.connect(store_url, timeout_s=PATIENCE_S)
        failing = {name: AccountReport(failed=3, cool_ms=60_000) for name in ("first", "second")}
        await Channels(client).sync("w", {"two": ChannelReport(ok=9, accounts={"first": failing["first"]})})
        await Channels(client).sync("w", {"one": ChannelReport(ok=9, accounts=failing)})
        await client.close()

    asyncio.run(report())
    _, one, two = run().stdout.splitlines()
    assert two.split() == ["two", "failing", "for", "1", "account", "12", "75.0", "%", "0", "0"]
    assert one.split()[1:3] == ["cooling", "until"], "of all accounts, not of two alone"


def test_scripts_get_an_object_for_each() -> None:
    one, two = as_json()
    assert (one["channel"], one["condition"], one["in_flight"], one["last_error"]) == (
        "one",
        "cooling",
        2,
        "upstream_timeout",
    )
    assert 0 < one["cool_ms"] <= 60_000
    assert (one["firm"], one["failing_accounts"]) == (True, 0)
    assert (two["condition"], two["in_words"], two["until"]) == ("healthy", "healthy", None)
    assert one["in_words"] == f"cooling until {one['until']}"
    assert two["figures"] == {
        "calls": 0,
        "failed": 0,
        "rate_limited": 0,
        "success": None,
        "first_event_p95_ms": None,
        "first_event_p90_ms": None,
        "minutes": [{"calls": 0, "failed": 0}] * 6,
    }


def test_a_channel_is_switched_off_and_on() -> None:
    run("disable", "one")
    assert [each["condition"] for each in as_json()] == ["disabled", "healthy"]
    run("enable", "one")
    assert [each["condition"] for each in as_json()] == ["healthy", "healthy"]


@pytest.mark.parametrize("command", ["enable", "disable"])
def test_a_channel_that_is_not_in_the_file_is_refused(command: str) -> None:
    result = CliRunner().invoke(app, ["channels", command, "three"])
    assert result.exit_code == 3
    assert "there is no channel three; the configuration has: one, two" in result.output


def states() -> list[tuple[str, str]]:
    return [(each["state"], each["reason"]) for each in as_json()[0]["credentials"]]


def refuse(store_url: str, key: str, *, spent: bool = False) -> None:
    """Report as a worker does that the upstream refused a credential of channel `one`."""

    async def report() -> None:
        client = Client.connect(store_url, timeout_s=PATIENCE_S)
        other = Channels(client)
        other.credentials.refused("one", fingerprint_of(key), "402", spent=spent)
        await other.sync("w", {"one": ChannelReport(credentials=other.credentials.take_report("one"))})
        await client.close()

    asyncio.run(report())


def test_a_credential_that_is_set_aside_is_a_line_without_its_text(store_url: str) -> None:
    assert "credential" not in run().stdout
    assert states() == [("in use", ""), ("in use", "")]
    refuse(store_url, "canary-4712")
    line = run().stdout.splitlines()[-1].split()
    fingerprint = f"({as_json()[0]['credentials'][1]['fingerprint']})"
    assert (line[:4], line[-1]) == (["one", "2", fingerprint, "refused"], "402")
    assert line[4:6] < line[6:8]
    assert states() == [("in use", ""), ("refused", "402")]
    two = as_json()[0]["credentials"]
    assert [each["number"] for each in two] == [1, 2]
    assert len({each["fingerprint"] for each in two}) == 2
    assert two[0]["since"] is two[0]["until"] is None


def test_a_spent_credential_is_set_aside_until_it_is_tried(store_url: str) -> None:
    refuse(store_url, "canary-4711", spent=True)
    assert run().stdout.splitlines()[-1].split("  ")[-2:] == ["it is tried", "402"]
    run("credential", "one", "1", "try")
    assert states() == [("in use", ""), ("in use", "")]


def test_a_credential_is_tried_switched_off_and_on_by_number(store_url: str) -> None:
    refuse(store_url, "canary-4711")
    assert "credential 1 of one may be used again" in run("credential", "one", "1", "try").stdout
    assert states() == [("in use", ""), ("in use", "")]
    refuse(store_url, "canary-4711")
    assert "credential 1 of one is switched off" in run("credential", "one", "1", "off").stdout
    assert states()[0] == ("off", "")
    assert run().stdout.splitlines()[-1].endswith("it is switched on")
    result = CliRunner().invoke(app, ["channels", "credential", "one", "1", "try"])
    assert (result.exit_code, "gateway channels credential one 1 on" in result.output) == (1, True)
    run("credential", "one", "1", "on")
    assert states() == [("in use", ""), ("in use", "")]


@pytest.mark.parametrize(
    ("arguments", "message", "code"),
    [
        (("one", "3", "off"), "one has 2 credentials, counted from 1", 1),
        (("two", "1", "off"), "two has no credentials", 1),
        (("three", "1", "off"), "there is no channel three; the configuration has: one, two", 3),
    ],
)
def test_a_credential_that_is_not_in_the_file_is_refused(arguments: tuple[str, ...], message: str, code: int) -> None:
    result = CliRunner().invoke(app, ["channels", "credential", *arguments])
    assert result.exit_code == code
    assert message in result.output


def test_who_disabled_a_channel_when_and_why_is_shown_until_it_is_enabled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUDO_USER", "alice")
    run("disable", "two", "--reason", "invoice unpaid\x1b[2J")
    lines = run().stdout.splitlines()
    assert lines[4].split() == ["channel", "disabled", "since", "by", "reason"]
    name, since, _, by, reason = lines[5].split(maxsplit=4)
    assert (name, by, reason) == ("two", f"alice@{socket.gethostname()}", "invoice unpaid\\x1b[2J")
    assert since.startswith("20")
    noted = as_json()[1]["disabling"]
    assert (noted["by"], noted["reason"]) == (by, "invoice unpaid\x1b[2J")
    run("disable", "two")
    assert run().stdout.splitlines()[5].split()[4] == "-"
    run("enable", "two")
    assert "alice" not in run().stdout
    too_long = CliRunner().invoke(app, ["channels", "disable", "two", "--reason", "x" * 201])
    assert too_long.exit_code == 2
    assert "at most 200 characters" in " ".join(too_long.output.replace("│", " ").split())


FILE = """
redis: redis://127.0.0.1:1
channels:
  one: {{base_url: "{url}", api_keys: [channel-credential-4711, channel-credential-4712], timers: {{first_byte: 0.5}}}}
  closed: {{base_url: "http://127.0.0.1:1/v1"}}
  spare: {{base_url: "{url}"}}
models:
  words: {{input: 1, output: 2, channels: [{{use: one, model: upstream-words}}, closed]}}
groups: {{default: {{}}}}
plugins: [{{use: usage-logger}}, {{use: auth}}, {{use: quota}}, {{use: model-routing}}]
"""


@pytest.fixture
async def upstream(tmp_path: Path) -> AsyncIterator[FakeUpstream]:
    async with FakeUpstream(pace_s=0.001, key="channel-credential-4711") as fake:
        (tmp_path / "gateway.yaml").write_text(FILE.format(url=fake.base_url))
        yield fake


async def tried(folder: Path, *arguments: str, code: int) -> str:
    command = ["channels", "test", *arguments, "--config", str(folder / "gateway.yaml")]
    result = await asyncio.to_thread(CliRunner().invoke, program(), command)
    assert result.exit_code == code, result.output
    assert "credential-47" not in result.output
    return result.output


async def test_an_upstream_that_streams_is_good(tmp_path: Path, upstream: FakeUpstream) -> None:
    out = await tried(tmp_path, "one", code=0)
    assert out.startswith("one answers with 200 after ")
    assert out.endswith(" ms for upstream-words: it streams\n")
    [request] = upstream.requests
    body = json.loads(request.body)
    assert (body["model"], body["stream"], body["max_tokens"]) == ("upstream-words", True, 16)
    verdict = json.loads(await tried(tmp_path, "one", "--model", "words", "--json", code=0))
    assert (verdict["good"], verdict["status"], verdict["channel"]) == (True, 200, "one")


@pytest.mark.parametrize(
    ("mode", "text"),
    [
        ("429", "fails with 429"),
        ("html", "its answer is not an event stream, but text/html"),
        ("silent", "it did not answer in time, see `timers`"),
    ],
)
async def test_how_it_fails_is_said(tmp_path: Path, upstream: FakeUpstream, mode: str, text: str) -> None:
    upstream.mode = mode
    assert text in await tried(tmp_path, "one", code=1)


async def test_each_credential_can_be_tried_and_what_cannot_be_is_refused(
    tmp_path: Path, upstream: FakeUpstream
) -> None:
    assert "one fails with 401 after " in await tried(tmp_path, "one", "--credential", "2", code=1)
    assert "closed fails after " in await tried(tmp_path, "closed", code=1)
    assert "one has 2 credentials, counted from 1" in await tried(tmp_path, "one", "--credential", "3", code=1)
    assert "no model of the configuration is served by spare" in await tried(tmp_path, "spare", code=3)
    assert "it serves: words" in await tried(tmp_path, "one", "--model", "large", code=3)
    assert "the configuration has: one, closed, spare" in await tried(tmp_path, "two", code=3)


async def test_it_is_asked_as_requests_of_callers_are(tmp_path: Path) -> None:
    answered = [b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 17\r\n\r\nevent: ping\ndata:"]
    own = "headers: {X-Title: gateway}, query: {version: '1'}, set: {metadata: {user_id: trial}}, api_key: channel-credential-4711"
    for more, seen in (
        ("auth: query key", [b"POST /v1/chat/completions?version=1&key=channel-credential-4711 ", b'"stream":true']),
        ("dialect: anthropic", [b"POST /v1/messages?version=1 ", b"x-api-key: channel-credential-4711\r\n"]),
    ):
        async with Scripted(answered) as upstream:
            (tmp_path / "gateway.yaml").write_text(
                f"channels: {{one: {{base_url: '{upstream.base_url}', {own}, {more}}}}}\n"
                "models: {words: {free: true, channels: [one]}}\nplugins: [{use: auth}, {use: model-routing}, {use: anthropic}]\n"
            )
            assert "it streams" in await tried(tmp_path, "one", code=0)
            (request,) = upstream.requests
            for part in (*seen, b"X-Title: gateway\r\n", b'"metadata":{"user_id":"trial"}', b'"max_tokens":16'):
                assert part.lower() in request.lower()
